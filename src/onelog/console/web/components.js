// What pages are made of: tables, cards, charts, dialogs, and how numbers and times are written.

import { h, replace } from "./dom.js";
import { t, language } from "./labels.js";

// -- numbers and times ---------------------------------------------------------------------------

export const count = (value) => new Intl.NumberFormat(language()).format(value);
export function rate(value) {
  return new Intl.NumberFormat(language(), { maximumFractionDigits: value < 10 ? 1 : 0 }).format(value);
}
export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${value >= 100 || at === 0 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
}
export function seconds(value) {
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  return value < 1 ? `${+(value * 1000).toPrecision(3)} ms` : `${+value.toPrecision(3)} s`;
}
export function time(ms) {
  if (!ms) return "–";
  const made = new Date(ms);
  const two = (value) => String(value).padStart(2, "0");
  const day = `${made.getFullYear()}-${two(made.getMonth() + 1)}-${two(made.getDate())}`;
  const text = `${day} ${two(made.getHours())}:${two(made.getMinutes())}:${two(made.getSeconds())}.${String(made.getMilliseconds()).padStart(3, "0")}`;
  return h("time", { datetime: made.toISOString(), title: made.toString() }, text);
}
export function span(ms) {
  const parts = [[86400000, "d"], [3600000, "h"], [60000, "min"], [1000, "s"]];
  const left = Math.max(0, ms);
  for (let at = 0; at < parts.length; at += 1) {
    const [size, name] = parts[at];
    if (left >= size) {
      const next = parts[at + 1];
      const rest = next ? Math.floor((left % size) / next[0]) : 0;
      return `${Math.floor(left / size)} ${name}${rest ? ` ${rest} ${next[1]}` : ""}`;
    }
  }
  return `${Math.round(left)} ms`;
}

// -- blocks --------------------------------------------------------------------------------------

export const badge = (text, kind = "") => h("span", { class: `badge ${kind}` }, text);
export const card = (title, ...children) => h("section", { class: "card" }, title ? h("h2", null, title) : null, children);
export const notice = (text, kind = "") => h("p", { class: `notice ${kind}`, role: kind === "bad" ? "alert" : null }, text);

export function head(title, { crumbs, text, does = [], badges = [] } = {}) {
  document.title = `${title} · OneLog`;
  return h("div", { class: "head" },
    crumbs ? h("div", { class: "crumbs" }, crumbs) : null,
    h("h1", null, title), badges,
    h("div", { class: "does" }, does),
    text ? h("p", null, text) : null);
}

export const number = (what, much, more = "") => h("div", { class: "number" },
  h("div", { class: "what" }, what), h("div", { class: "much" }, much), h("div", { class: "more", title: more }, more || "\u00a0"));

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) => [h("dt", null, name), h("dd", null, value ?? "–")]));
}

/** A table. A column: [title, cell of a row, class]. */
export function table(title, columns, rows, { empty = t("No entries.") } = {}) {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title },
    h("table", null, h("caption", { class: "sr" }, title),
      h("thead", null, h("tr", null, columns.map(([name, , kind]) =>
        h("th", { scope: "col", class: kind || null }, name instanceof Node ? name : name || h("span", { class: "sr" }, t("Actions")))))),
      h("tbody", null, rows.map((row) => h("tr", null, columns.map(([, cell, kind]) => h("td", { class: kind || null }, cell(row))))))));
}

export function button(text, act, kind = "") {
  const made = h("button", { type: "button", class: kind, on: { click: async () => {
    made.disabled = true;
    try { await act(); } catch (error) { complain(error); } finally { made.disabled = false; }
  } } }, text);
  return made;
}

export function field(title, input, { hint, full } = {}) {
  return h("label", { class: full ? "full" : null }, h("span", null, title, hint ? h("span", { class: "hint" }, ` ${hint}`) : null), input);
}

export function options(chosen, pairs) {
  return pairs.map(([value, text]) => h("option", { value, selected: value === chosen }, text));
}

export function bar(part, kind = "") {
  const fill = h("i", { class: kind });
  fill.style.width = `${Math.max(0, Math.min(100, part * 100))}%`;
  return h("div", { class: "bar", "aria-hidden": "true" }, fill);
}

/** Pages of a list: `load` is given where to begin and returns a listing. */
export function pager(load, show) {
  const trail = [""];
  const place = h("div");
  async function go() {
    const page = await load(trail.at(-1));
    replace(place, show(page), h("div", { class: "pages" },
      h("span", null, t("{n} in all", { n: count(page.total) })),
      trail.length > 1 || page.next ? h("div", { class: "does" },
        step(t("Previous"), trail.length > 1, () => trail.pop()),
        step(t("Next"), page.next, () => trail.push(page.next))) : null));
  }
  const step = (text, can, move) => {
    const made = button(text, async () => { move(); await go(); }, "small");
    made.disabled = !can;
    return made;
  };
  return { place, go, first: async () => { trail.length = 1; await go(); } };
}

export function tabs(label, chosen, pairs) {
  return h("nav", { class: "tabs", "aria-label": label }, pairs.map(([name, text, href]) =>
    h("a", { href, "aria-current": name === chosen ? "page" : null }, text)));
}

// -- talking -------------------------------------------------------------------------------------

export function say(text, kind = "") {
  const made = h("div", { class: `toast ${kind}`, role: kind === "bad" ? "alert" : null }, text);
  document.getElementById("toasts").append(made);
  setTimeout(() => made.remove(), kind === "bad" ? 9000 : 4000);
}
export function complain(error) {
  if (error?.name !== "AbortError") say(error?.message || String(error), "bad");
}

/** Ask in a dialog; `act` gets the form's values. Resolves to what it returned, or null. */
export function ask(title, content, { ok = t("OK"), bad = false, act = async () => true } = {}) {
  return new Promise((resolve) => {
    const trouble = h("div");
    const form = h("form", { method: "dialog" }, h("h2", { id: "ask-title" }, title), content, trouble,
      h("div", { class: "does" },
        h("button", { type: "button", on: { click: () => end(null) } }, t("Cancel")),
        h("button", { type: "submit", class: bad ? "main bad" : "main" }, ok)));
    const made = h("dialog", { "aria-labelledby": "ask-title", on: { cancel: (event) => { event.preventDefault(); end(null); } } }, form);
    function end(value) { made.close(); made.remove(); resolve(value); }
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const does = form.querySelector("button[type=submit]");
      does.disabled = true;
      try { end(await act(Object.fromEntries(new FormData(form))) ?? true); }
      catch (error) { replace(trouble, notice(error.message, "bad")); }
      finally { does.disabled = false; }
    });
    document.body.append(made);
    made.showModal();
  });
}
export const confirm = (title, text, act, ok = t("Delete")) => ask(title, h("p", null, text), { ok, bad: true, act });

// -- charts --------------------------------------------------------------------------------------

/** Values over time: series are [name, values]; all have the same times. */
export function chart(label, times, series, write = rate, base = 10) {
  const width = innerWidth < 600 ? 360 : 640, height = 190, left = base === 10 ? 46 : 58, bottom = 20, top = 8;
  const most = Math.max(0, ...series.flatMap(([, values]) => values)) || 4;
  const step = nice(most / 4, base);
  const high = Math.max(step, Math.ceil(most / step) * step);
  const first = times[0] ?? 0, last = times.at(-1) ?? 1;
  const x = (at) => left + (last > first ? (times[at] - first) / (last - first) : 1) * (width - left - 4);
  const y = (value) => top + (1 - value / high) * (height - top - bottom);
  const told = series.map(([name, values]) => `${name} ${write(values.at(-1) ?? 0)}`).join(", ");
  const made = h("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${label}: ${told}` });
  for (let value = 0; value <= high * 1.0001; value += step) {
    made.append(h("line", { class: "grid-line", x1: left, x2: width, y1: y(value), y2: y(value) }),
      h("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, write(value)));
  }
  if (times.length > 1) {
    made.append(h("text", { x: left, y: height - 3 }, clock(first)), h("text", { x: width - 2, y: height - 3, "text-anchor": "end" }, clock(last)));
  }
  series.forEach(([, values], number) => {
    if (values.length < 2) return;
    const points = values.map((value, at) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`);
    made.append(
      h("path", { class: `area c${number}`, d: `M${points[0]}L${points.join("L")}L${x(values.length - 1).toFixed(1)},${y(0)}L${x(0).toFixed(1)},${y(0)}Z` }),
      h("polyline", { class: `line c${number}`, points: points.join(" "), fill: "none" }));
  });
  return h("div", null, made, h("div", { class: "legend" }, series.map(([name, values], number) =>
    h("span", null, h("i", { class: `dot c${number}` }), name, " ", h("b", null, write(values.at(-1) ?? 0))))));
}
function nice(value, base) {
  const power = base ** Math.floor(Math.log(value) / Math.log(base));
  const steps = base === 10 ? [1, 2, 2.5, 5, 10] : [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
  return (steps.find((each) => each * power >= value) ?? base) * power;
}
const clock = (ms) => new Date(ms).toTimeString().slice(0, 8);
