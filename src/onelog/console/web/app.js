// The frame: finds the page of the address, keeps what is alive while it is shown, and ends it.

import { get } from "./api.js";
import { h, replace } from "./dom.js";
import { badge, complain, notice, ask } from "./components.js";
import { choose, language, t } from "./labels.js";
import { icon } from "./icons.js";
import { overview } from "./overview.js";
import { topics, topic, send } from "./topics.js";
import { groups, group } from "./groups.js";
import { messages, message, trace } from "./messages.js";
import { delays, deadLetters, letters, transactions } from "./pending.js";
import { exchanges, queues } from "./routing.js";
import { connections, cluster, settings, lake } from "./broker.js";
import { audit, users } from "./users.js";

const PAGES = [
  ["", [["overview", "Overview", overview, "o"]]],
  ["Data", [["topics", "Topics", topics, "t"], ["groups", "Consumer groups", groups, "g"], ["messages", "Messages", messages, "m"], ["queues", "Work queues", queues, "q"], ["exchanges", "Exchanges", exchanges, "a"], ["send", "Send", send, "s"]]],
  ["Result per group", [["delays", "Delayed", delays, "d"], ["dead-letters", "Dead letters", deadLetters, "l"], ["transactions", "Transactions", transactions, "x"], ["trace", "Trace", trace, "r"]]],
  ["Broker", [["connections", "Connections", connections, "c"], ["cluster", "Cluster", cluster, "u"], ["lake", "Lake and Spark", lake, "k"], ["users", "Users", users, "p"], ["audit", "Audit", audit, "i"], ["settings", "Settings", settings, "e"]]],
];
const INSIDE = { topics: topic, groups: group, messages: message, "dead-letters": letters, exchanges, trace };

const main = document.getElementById("main");
let alive = new AbortController();
export const state = { overview: null };

/** What the address says: #/topics/orders/messages?q=1 */
function address() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page = "", ...rest] = path.split("/").map(decodeURIComponent);
  return { page: page || "overview", rest, query: Object.fromEntries(new URLSearchParams(query)) };
}

async function show() {
  alive.abort();
  alive = new AbortController();
  const { page, rest, query } = address();
  const known = PAGES.flatMap(([, each]) => each).find(([name]) => name === page);
  const render = rest.length && INSIDE[page] ? INSIDE[page] : known?.[2];
  side(page);
  const view = h("div");
  if (!render) {
    replace(main, notice(t("There is no such page."), "bad"));
    return;
  }
  const context = {
    signal: alive.signal, rest, query, overview: () => state.overview,
    mayChange: () => state.overview?.may_change ?? false,
    every(ms, act) {
      const signal = alive.signal;
      const timer = setInterval(async () => {
        if (document.hidden || signal.aborted) return;
        try { await act(); } catch (error) { if (error.status !== 0) console.debug(error.message); }
      }, ms);
      signal.addEventListener("abort", () => clearInterval(timer));
    },
    go: (to) => { location.hash = to; },
    again: () => show(),
  };
  const signal = alive.signal;
  replace(main, view);
  try { await render(view, context); }
  catch (error) { if (!signal.aborted) replace(view, notice(error.message, "bad")); }
  if (!signal.aborted) main.scrollTo?.(0, 0);
}

function side(page) {
  replace(document.getElementById("side"), PAGES.map(([title, each]) => [
    title ? h("div", { class: "part" }, t(title)) : null,
    each.map(([name, text, , key]) => h("a", { href: `#/${name}`, "aria-current": name === page ? "page" : null, "aria-keyshortcuts": `g ${key}` }, icon(name), t(text))),
  ]));
  document.getElementById("side").classList.remove("open");
}

function top() {
  const found = state.overview;
  const search = h("input", { type: "search", id: "search", placeholder: t("Go to topic, group or message id…"), "aria-label": t("Go to topic, group or message id…"), autocomplete: "off" });
  const form = h("form", { class: "search", role: "search", on: { submit: (event) => { event.preventDefault(); find(search.value.trim()); } } }, search);
  const dark = document.documentElement.dataset.theme === "dark" || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  const health = !found ? null : found.refusal ? badge([h("i", { class: "dot" }), t("refuses messages")], "bad") : badge([h("i", { class: "dot" }), t(found.role)], "good");
  replace(document.getElementById("top"),
    h("button", { class: "menu plain", type: "button", "aria-label": t("Menu"), on: { click: () => document.getElementById("side").classList.toggle("open") } }, icon("menu")),
    h("a", { class: "brand", href: "#/overview" }, h("img", { src: "/console/icon.svg", alt: "" }), h("span", null, "OneLog")),
    found ? h("div", { class: "where" }, h("span", null, `${found.name} · ${found.cluster} · ${found.version}`), health) : null,
    form,
    found?.user ? h("button", { class: "plain", type: "button", title: t("Log out"), on: { click: async () => { await fetch("/logout", { method: "POST" }); location.assign("/login"); } } }, found.user) : null,
    h("button", { class: "plain", type: "button", lang: language() === "zh-CN" ? "en" : "zh-CN", "aria-label": language() === "zh-CN" ? "English" : "中文", on: { click: () => { choose(language() === "zh-CN" ? "en" : "zh-CN"); top(); show(); } } }, language() === "zh-CN" ? "EN" : "中文"),
    h("button", { class: "plain", type: "button", "aria-label": dark ? t("Light theme") : t("Dark theme"), on: { click: () => theme(dark ? "light" : "dark") } }, icon(dark ? "sun" : "moon")));
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  try { localStorage.setItem("onelog-theme", name); } catch { /* It lasts as long as the page, then. */ }
  top();
}

/** A topic or group of that name, or a message of that id. */
async function find(text) {
  if (!text) return;
  try {
    if (/^[0-9A-Fa-f]{32}$|^[0-9A-Fa-f]{56}$/.test(text)) { location.hash = `#/messages/${encodeURIComponent(text)}`; return; }
    const [topics, groups] = await Promise.all([get("/v1/topics", { q: text, limit: 2 }), get("/v1/groups", { q: text, limit: 2 })]);
    const exact = (list) => list.items.find((each) => each.name === text) || (list.total === 1 && list.items[0]);
    if (exact(topics)) location.hash = `#/topics/${encodeURIComponent(exact(topics).name)}`;
    else if (exact(groups)) location.hash = `#/groups/${encodeURIComponent(exact(groups).name)}`;
    else location.hash = topics.total || !groups.total ? `#/topics?q=${encodeURIComponent(text)}` : `#/groups?q=${encodeURIComponent(text)}`;
  } catch (error) { complain(error); }
}

// -- keys ----------------------------------------------------------------------------------------

let going = 0;
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
  const pages = PAGES.flatMap(([, each]) => each);
  if (event.key === "/") { event.preventDefault(); document.getElementById("search").focus(); }
  else if (event.key === "?") help(pages);
  else if (event.key === "g" && Date.now() - going > 1200) going = Date.now();
  else if (Date.now() - going <= 1200) {
    going = 0;
    const page = pages.find(([, , , key]) => key === event.key);
    if (page) location.hash = `#/${page[0]}`;
  }
});
function help(pages) {
  ask(t("Keys"), h("dl", { class: "facts" },
    h("dt", null, h("kbd", null, "/")), h("dd", null, t("Search")),
    pages.map(([, text, , key]) => [h("dt", null, h("kbd", null, "g"), " ", h("kbd", null, key)), h("dd", null, t(text))])));
}

async function look() {
  const had = state.overview;
  try {
    state.overview = await get("/v1/overview");
    if (!had || had.refusal !== state.overview.refusal || had.role !== state.overview.role || had.user !== state.overview.user) top();
  } catch { /* The page says so. */ }
}

document.documentElement.lang = language();
addEventListener("hashchange", () => { show(); main.focus({ preventScroll: true }); window.scrollTo(0, 0); });
side(address().page);
top();
await look();
await show();
setInterval(() => { if (!document.hidden) look(); }, 5000);
document.documentElement.dataset.ready = "yes";
