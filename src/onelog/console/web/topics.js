// Topics, one topic, and sending.

import { get, part, patch, post, remove } from "./api.js";
import { h, replace } from "./dom.js";
import { ask, badge, button, card, confirm, count, facts, field, head, options, pager, rate, say, table, tabs, time } from "./components.js";
import { results } from "./messages.js";
import { t } from "./labels.js";

const KINDS = [["normal", "normal"], ["retry", "retry"], ["dead", "dead letters"], ["system", "system"]];
const link = (name) => h("a", { href: `#/topics/${part(name)}` }, name);

export async function topics(view, context) {
  const q = h("input", { type: "search", name: "q", value: context.query.q || "", placeholder: t("part of a name") });
  const kind = h("select", { name: "kind" }, options(context.query.kind ?? "normal", [["", t("all")], ...KINDS.map(([value, text]) => [value, t(text)])]));
  const chosen = new Set();
  const bulk = h("div", { class: "does" });
  const list = pager((after) => get("/v1/topics", { q: q.value, kind: kind.value, after, limit: 50 }, context.signal), (page) => {
    chosen.clear();
    marks();
    return table(t("Topics"), [
      ["", (each) => h("input", { type: "checkbox", "aria-label": t("Choose {name}", { name: each.name }), on: { change: (event) => { event.target.checked ? chosen.add(each.name) : chosen.delete(each.name); marks(); } } }), "tight"],
      [t("Topic"), (each) => link(each.name), "wide"],
      [t("Kind"), (each) => badge(t(KINDS.find(([value]) => value === each.kind)[1]), each.kind === "dead" ? "warn" : "")],
      [t("Queues"), (each) => count(each.queues), "num"],
      [t("Messages"), (each) => count(each.messages), "num"],
      [t("In per second"), (each) => rate(each.put_per_second), "num"],
      [t("Permission"), (each) => h("span", { class: "mono" }, each.permission)],
    ], page.items, { empty: t("No topic has this name.") });
  });
  function marks() {
    replace(bulk, chosen.size ? [
      button(t("Empty {n}", { n: chosen.size }), () => many(t("Delete all messages of {n} topics?", { n: chosen.size }), (name) => remove(`/v1/topics/${part(name)}/messages`)), "small bad"),
      button(t("Delete {n}", { n: chosen.size }), () => many(t("Delete {n} topics with all their messages?", { n: chosen.size }), (name) => remove(`/v1/topics/${part(name)}`)), "small bad"),
    ] : null);
  }
  async function many(question, act) {
    await confirm(t("Are you sure?"), `${question} ${[...chosen].join(", ")}`, async () => { for (const name of chosen) await act(name); });
    await list.go();
  }
  q.addEventListener("input", later(() => list.first()));
  kind.addEventListener("change", () => list.first());
  replace(view, head(t("Topics"), { does: [bulk, context.mayChange() ? button(t("New topic"), () => create(context), "main") : null] }),
    card(null, h("div", { class: "filters" }, field(t("Name"), q), field(t("Kind"), kind)), list.place));
  await list.go();
}

export function later(act, ms = 250) {
  let timer = 0;
  return () => { clearTimeout(timer); timer = setTimeout(() => act().catch((error) => say(error.message, "bad")), ms); };
}

async function create(context) {
  const made = await ask(t("New topic"), h("div", { class: "fields" },
    field(t("Name"), h("input", { name: "name", required: true, maxlength: 255, autofocus: true }), { full: true }),
    field(t("Queues"), h("input", { name: "queues", type: "number", min: 1, max: 1024, value: 8 })),
    field(t("Permission"), h("select", { name: "permission" }, options("rw", [["rw", t("read and write")], ["r", t("read")], ["w", t("write")]]))),
    h("label", { class: "check" }, h("input", { type: "checkbox", name: "ordered" }), t("ordered"))),
  { ok: t("Create"), act: (given) => post("/v1/topics", { name: given.name, queues: Number(given.queues), permission: given.permission, ordered: Boolean(given.ordered) }) });
  if (made) { say(t("Topic {name} was created.", { name: made.name })); context.go(`#/topics/${part(made.name)}`); }
}

export async function topic(view, context) {
  const [name, tab = "messages"] = context.rest;
  const base = `#/topics/${part(name)}`;
  const found = await get(`/v1/topics/${part(name)}`, {}, context.signal);
  const does = context.mayChange() ? [
    h("a", { class: "button", href: `#/send?topic=${part(name)}` }, t("Send a message")),
    button(t("Empty"), async () => { if (await confirm(t("Are you sure?"), t("Delete all messages of {name}?", { name }), () => remove(`/v1/topics/${part(name)}/messages`))) { say(t("Emptied.")); context.again(); } }, "bad"),
    button(t("Delete"), async () => { if (await confirm(t("Are you sure?"), t("Delete {name} with all its messages?", { name }), () => remove(`/v1/topics/${part(name)}`))) { say(t("Deleted.")); context.go("#/topics"); } }, "bad"),
  ] : [];
  const place = h("div");
  replace(view, head(name, { crumbs: h("a", { href: "#/topics" }, t("Topics")), badges: [badge(t(KINDS.find(([value]) => value === found.kind)[1])), badge(t("{n} messages", { n: count(found.messages) }), "accent")], does }),
    tabs(t("Parts of the topic"), tab, [["messages", t("Messages"), `${base}/messages`], ["queues", t("Queues"), `${base}/queues`], ["groups", t("Consumer groups"), `${base}/groups`], ["settings", t("Settings"), `${base}/settings`]]),
    place);
  if (tab === "queues") {
    const queues = await get(`/v1/topics/${part(name)}/queues`, {}, context.signal);
    replace(place, card(null, table(t("Queues"), [
      [t("Queue"), (each) => h("a", { href: `${base}/messages?queue=${each.queue}` }, each.queue)], [t("Begin"), (each) => count(each.begin), "num"], [t("End"), (each) => count(each.end), "num"],
      [t("Messages"), (each) => count(each.end - each.begin), "num"], [t("Last message"), (each) => time(each.last_ms), "num"]], queues.items)));
  } else if (tab === "groups") {
    const readers = await get(`/v1/topics/${part(name)}/groups`, {}, context.signal);
    replace(place, card(null, table(t("Consumer groups"), [[t("Group"), (each) => h("a", { href: `#/groups/${part(each)}` }, each)]], readers.items, { empty: t("No consumers.") })));
  } else if (tab === "settings") replace(place, change(found, context));
  else await results(place, context, name);
}

function change(found, context) {
  const form = h("form", { class: "card", on: { submit: async (event) => {
    event.preventDefault();
    const given = Object.fromEntries(new FormData(form));
    try {
      const attributes = given.attributes.trim() ? Object.fromEntries(given.attributes.split("\n").filter((line) => line.trim()).map((line) => { const at = line.indexOf("="); return [line.slice(0, at).trim(), line.slice(at + 1).trim()]; })) : {};
      await patch(`/v1/topics/${part(found.name)}`, { queues: Number(given.queues), permission: given.permission, ordered: Boolean(given.ordered), attributes });
      say(t("Changed."));
      context.again();
    } catch (error) { say(error.message, "bad"); }
  } } },
  h("div", { class: "fields" },
    field(t("Queues"), h("input", { name: "queues", type: "number", min: 1, max: 1024, value: found.queues })),
    field(t("Permission"), h("select", { name: "permission" }, options(found.permission, [["rw", t("read and write")], ["r", t("read")], ["w", t("write")], ["none", t("none")]]))),
    h("label", { class: "check" }, h("input", { type: "checkbox", name: "ordered", checked: found.ordered }), t("ordered")),
    field(t("Attributes"), h("textarea", { name: "attributes", rows: 4, placeholder: "retention.ms=86400000" }, Object.entries(found.attributes).map(([name, value]) => `${name}=${value}`).join("\n")), { full: true, hint: t("one per line, name=value") }),
    h("div", { class: "full" }, facts([[t("Created"), time(found.created_ms)]]))),
  context.mayChange() ? h("p", null, h("button", { type: "submit", class: "main" }, t("Save"))) : null);
  return form;
}

export async function send(view, context) {
  const from = context.query;
  let first = { body: from.body || "", keys: from.keys || "", tags: from.tags || "", properties: "" };
  if (from.message) {
    const { message } = await get(`/v1/messages/${part(from.message)}`, { offset: from.offset }, context.signal);
    const kept = Object.entries(message.properties).filter(([name]) => !/^(UNIQ_KEY|KEYS|TAGS|WAIT|CLUSTER|MSG_REGION|TRACE_ON|REAL_|RETRY_|DLQ_|ORIGIN_|RECONSUME|MAX_OFFSET|MIN_OFFSET|CONSUME_|TIMER_|DELAY|PGROUP|TRAN_MSG|INNER_|POP_)/.test(name));
    first = { body: message.body, encoding: message.body_encoding, keys: message.keys.join(" "), tags: message.tags || "", properties: kept.map(([name, value]) => `${name}=${value}`).join("\n") };
  }
  const known = h("datalist", { id: "known-topics" });
  const sent = h("div", { "aria-live": "polite" });
  const form = h("form", { class: "card", on: { submit: async (event) => {
    event.preventDefault();
    const given = Object.fromEntries(new FormData(form));
    const properties = Object.fromEntries(given.properties.split("\n").filter((line) => line.includes("=")).map((line) => [line.slice(0, line.indexOf("=")).trim(), line.slice(line.indexOf("=") + 1).trim()]));
    const body = { body: given.body, body_encoding: given.encoding, tags: given.tags, keys: given.keys.split(/\s+/).filter(Boolean), properties };
    if (given.queue !== "") body.queue = Number(given.queue);
    if (given.at) body.deliver_at_ms = new Date(given.at).getTime();
    try {
      const done = await post(`/v1/topics/${part(given.topic)}/messages`, body);
      replace(sent, card(t("Sent"), facts([[t("Unique key"), h("span", { class: "mono" }, done.unique_key)], [t("Id"), done.id ? h("a", { class: "mono", href: `#/messages/${part(done.id)}` }, done.id) : t("it waits for its time")], [t("Queue"), done.queue], [t("Offset"), done.offset]])));
      say(t("The message is sent."));
    } catch (error) { say(error.message, "bad"); }
  } } },
  h("div", { class: "fields" },
    field(t("Topic"), h("input", { name: "topic", required: true, list: "known-topics", value: from.topic || "" })), known,
    field(t("Queue"), h("input", { name: "queue", type: "number", min: 0, placeholder: t("any") })),
    field(t("Tags"), h("input", { name: "tags", value: first.tags })),
    field(t("Keys"), h("input", { name: "keys", value: first.keys, placeholder: t("between spaces") })),
    field(t("Deliver at"), h("input", { name: "at", type: "datetime-local", step: 1 }), { hint: t("empty: now") }),
    field(t("Encoding"), h("select", { name: "encoding" }, options(first.encoding || "text", [["text", t("text")], ["base64", "base64"]]))),
    field(t("Body"), h("textarea", { name: "body", rows: 8, required: true }, first.body), { full: true }),
    field(t("Properties"), h("textarea", { name: "properties", rows: 3 }, first.properties), { full: true, hint: t("one per line, name=value") })),
  h("p", null, h("button", { type: "submit", class: "main", disabled: !context.mayChange() }, t("Send"))));
  replace(view, head(t("Send a message")), form, sent);
  const all = await get("/v1/topics", { kind: "normal", limit: 1000 }, context.signal);
  replace(known, all.items.map((each) => h("option", { value: each.name })));
}
