// Consumer groups: who is in them, how far they are, over time; and moving them.

import { get, part, post, remove } from "./api.js";
import { h, replace } from "./dom.js";
import { ask, badge, bar, button, card, chart, confirm, count, facts, field, head, notice, options, pager, rate, say, table, time } from "./components.js";
import { later } from "./topics.js";
import { t } from "./labels.js";

const states = { Stable: "good", Empty: "", Dead: "bad" };

export async function groups(view, context) {
  const q = h("input", { type: "search", value: context.query.q || "", placeholder: t("part of a name") });
  const sort = h("select", null, options(context.query.sort || "name", [["name", t("by name")], ["lag", t("by lag")]]));
  const list = pager((after) => get("/v1/groups", { q: q.value, sort: sort.value, after, limit: 50 }, context.signal), (page) => table(t("Consumer groups"), [
    [t("Group"), (each) => h("a", { href: `#/groups/${part(each.name)}` }, each.name), "wide"],
    [t("Protocol"), (each) => badge(each.protocol)],
    [t("State"), (each) => badge(t(each.state), states[each.state] ?? "warn")],
    [t("Members"), (each) => count(each.members), "num"],
    [t("Topics"), (each) => each.topics.slice(0, 3).join(", ") + (each.topics.length > 3 ? ` +${each.topics.length - 3}` : ""), "wide"],
    [t("Lag"), (each) => (each.lag ? badge(count(each.lag), each.lag > 10000 ? "warn" : "accent") : "0"), "num"],
  ], page.items, { empty: t("No group has this name.") }));
  q.addEventListener("input", later(() => list.first()));
  sort.addEventListener("change", () => list.first());
  replace(view, head(t("Consumer groups"), { does: [context.mayChange() ? button(t("New group"), () => create(context), "main") : null] }),
    card(null, h("div", { class: "filters" }, field(t("Name"), q), field(t("Order"), sort)), list.place));
  await list.go();
}

async function create(context) {
  const made = await ask(t("New group"), h("div", { class: "fields" },
    field(t("Name"), h("input", { name: "name", required: true, maxlength: 255, autofocus: true }), { full: true }),
    field(t("Tries before a message is given up"), h("input", { name: "retries", type: "number", min: 0, max: 1000000, value: 16 }))),
  { ok: t("Create"), act: (given) => post("/v1/groups", { name: given.name, retry_times_max: Number(given.retries) }) });
  if (made) context.go(`#/groups/${part(made.name)}`);
}

const lags = new Map();

export async function group(view, context) {
  const [name] = context.rest;
  const path = `/v1/groups/${part(name)}`;
  const place = h("div");
  const title = h("div");
  replace(view, title, place);
  async function look() {
    const found = await get(path, {}, context.signal);
    const past = lags.get(name) || { times: [], lag: [] };
    lags.set(name, past);
    past.times.push(Date.now());
    past.lag.push(found.lag);
    if (past.times.length > 300) { past.times.shift(); past.lag.shift(); }
    replace(title, head(name, {
      crumbs: h("a", { href: "#/groups" }, t("Consumer groups")),
      badges: [badge(found.protocol), badge(t(found.state), states[found.state] ?? "warn"), badge(t("lag {n}", { n: count(found.lag) }), found.lag ? "accent" : "good")],
      does: context.mayChange() ? [
        button(t("Move…"), () => move(found, context)),
        h("a", { class: "button", href: `#/dead-letters/${part(name)}` }, t("Dead letters")),
        button(t("Delete"), async () => { if (await confirm(t("Are you sure?"), t("Delete {name} and its positions?", { name }), () => remove(path))) context.go("#/groups"); }, "bad")] : [],
    }));
    replace(place, show(found, past));
  }
  await look();
  context.every(2000, look);
}

function show(found, past) {
  const most = Math.max(1, ...found.queues.map((each) => each.lag));
  return [
    found.is_mismatched ? notice(t("Members subscribe differently: messages that only others want are passed over."), "warn") : null,
    h("div", { class: "grid" },
      card(t("Lag over time"), chart(t("Lag over time"), past.times, [[t("lag"), past.lag]], (each) => count(Math.round(each)))),
      card(t("About"), facts([
        [t("Consumed per second"), rate(found.get_per_second)],
        [t("Way"), [found.consume_type, found.message_model].filter(Boolean).join(" · ") || "–"],
        [t("Subscriptions"), Object.entries(found.subscriptions).map(([topic, filter]) => h("div", null, h("a", { href: `#/topics/${part(topic)}` }, topic), " ", h("code", null, filter)))],
        ...Object.entries(found.settings).filter(([, value]) => value !== null && typeof value !== "object").map(([key, value]) => [key, String(value)])]))),
    card(t("Progress"), table(t("Progress"), [
      [t("Topic"), (each) => h("a", { href: `#/topics/${part(each.topic)}` }, each.topic), "wide"],
      [t("Queue"), (each) => each.queue, "num"], [t("Position"), (each) => count(each.position), "num"], [t("End"), (each) => count(each.end), "num"],
      [t("Lag"), (each) => h("div", { class: "split" }, bar(each.lag / most, each.lag > 10000 ? "warn" : ""), count(each.lag)), "num"],
      [t("In flight"), (each) => count(each.in_flight), "num"], [t("Consumed up to"), (each) => time(each.consumed_ms), "num"],
    ], found.queues, { empty: t("No position yet.") })),
    card(t("Members"), table(t("Members"), [
      [t("Client"), (each) => each.client_id, "wide"], [t("Address"), (each) => h("span", { class: "mono" }, each.address)], [t("Language"), (each) => each.language || "–"], [t("Topics"), (each) => each.topics.join(", "), "wide"],
    ], found.members, { empty: t("No live members.") })),
  ];
}

/** To another place: first it is shown what will be read again, or skipped. */
async function move(found, context) {
  const topics = [...new Set([...found.queues.map((each) => each.topic), ...Object.keys(found.subscriptions)])].filter((each) => !each.startsWith("%RETRY%"));
  const preview = h("div", { "aria-live": "polite" });
  const at = h("input", { name: "at", type: "datetime-local", step: 1 });
  const form = () => Object.fromEntries(new FormData(preview.closest("form")));
  const wish = (given, dry) => ({ topic: given.topic, dry_run: dry, ...(given.to === "time" ? { to_ms: new Date(given.at).getTime() || 0 } : { to: given.to }) });
  const effect = (moves) => notice(
    moves.read_again || moves.skipped
      ? [moves.read_again ? t("{n} messages will be read again.", { n: count(moves.read_again) }) : null, moves.skipped ? ` ${t("{n} messages will be skipped.", { n: count(moves.skipped) })}` : null].filter(Boolean).join("")
      : t("Nothing changes."), "warn");
  const look = async () => {
    try { replace(preview, effect(await post(`/v1/groups/${part(found.name)}/reset`, wish(form(), true)))); }
    catch (error) { replace(preview, notice(error.message, "bad")); }
  };
  setTimeout(look);
  const done = await ask(t("Move {name}", { name: found.name }), h("div", { class: "fields", on: { change: look } },
    field(t("Topic"), h("input", { name: "topic", list: "its-topics", required: true, value: topics[0] || "" })), h("datalist", { id: "its-topics" }, topics.map((each) => h("option", { value: each }))),
    field(t("To"), h("select", { name: "to" }, options("earliest", [["earliest", t("the oldest message")], ["latest", t("the end: skip all")], ["time", t("a time")]]))),
    field(t("Time"), at), h("div", { class: "full" }, preview)),
  { ok: t("Move"), bad: true, act: (given) => post(`/v1/groups/${part(found.name)}/reset`, wish(given, false)) });
  if (done) { say(t("Moved.")); context.again(); }
}
