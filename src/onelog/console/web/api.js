// Calls of /v1. An answer that is a problem becomes an error with its words.

export class Problem extends Error {
  constructor(status, detail, kind) {
    super(detail);
    this.status = status;
    this.kind = kind;
  }
}

async function call(method, path, { query, body, signal } = {}) {
  const asked = Object.entries(query || {}).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = asked.length ? "?" + new URLSearchParams(asked).toString() : "";
  let answer;
  try {
    answer = await fetch(path + text, {
      method,
      signal,
      headers: body === undefined ? {} : { "content-type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The broker does not answer.", "offline");
  }
  const found = await answer.json().catch(() => ({}));
  if (answer.status === 401) location.assign("/login");
  if (!answer.ok) throw new Problem(answer.status, found.detail || answer.statusText, found.type || "");
  return found;
}

export const get = (path, query, signal) => call("GET", path, { query, signal });
export const post = (path, body) => call("POST", path, { body });
export const put = (path, body) => call("PUT", path, { body });
export const patch = (path, body) => call("PATCH", path, { body });
export const remove = (path) => call("DELETE", path);

/** A name as a part of a path. */
export const part = (name) => encodeURIComponent(name);
