// Delayed messages, dead letters and open transactions.

import { get, part, post, remove } from "./api.js";
import { h, replace } from "./dom.js";
import { ask, badge, bytes, button, card, confirm, count, field, head, notice, say, span, table, time } from "./components.js";
import { t } from "./labels.js";

const message = (id, text) => h("a", { href: `#/messages/${part(id)}` }, text);
const topicLink = (name) => h("a", { href: `#/topics/${part(name)}` }, name);

export async function delays(view, context) {
  const place = h("div");
  const topic = h("input", { type: "search", value: context.query.topic || "", placeholder: t("all") });
  replace(view, head(t("Delayed messages"), { text: t("Sorted by due time.") }), h("div", { class: "filters" }, field(t("Topic"), topic)), place);
  async function look() {
    const found = await get("/v1/delays", { topic: topic.value, limit: 200 }, context.signal);
    const now = Date.now();
    replace(place, card(null, table(t("Delayed messages"), [
      [t("Due"), (each) => time(each.due_ms), "tight"], [t("In"), (each) => (each.due_ms > now ? span(each.due_ms - now) : t("now")), "num"],
      [t("Topic"), (each) => topicLink(each.topic), "wide"], [t("Keys"), (each) => each.keys.join(" ")], [t("Message"), (each) => message(each.id, each.unique_key || each.id), "wide mono"],
      [t("Size"), (each) => bytes(each.body_bytes), "num"], [t("Level"), (each) => each.level ?? "–", "num"],
      ["", (each) => (each.handle && context.mayChange() ? h("div", { class: "does" },
        button(t("Send now"), async () => { await sendNow(each); await look(); }, "small"), " ",
        button(t("Cancel it"), async () => { if (await confirm(t("Are you sure?"), t("This message will never be delivered."), () => remove(`/v1/delays/${part(each.handle)}`), t("Cancel it"))) { say(t("Cancelled.")); await look(); } }, "small bad")) : null), "tight"],
    ], found.items, { empty: t("No message is waiting.") }), h("div", { class: "pages" }, t("{n} in all", { n: count(found.total) }))));
  }
  topic.addEventListener("change", () => look().catch((error) => say(error.message, "bad")));
  await look();
  context.every(5000, look);
}

/** Taken back first: if that fails it is due already, and nothing is delivered twice. */
async function sendNow(each) {
  const { message: found } = await get(`/v1/messages/${part(each.id)}`);
  if (found.body_is_cut) throw new Error(t("The message is too large for that."));
  const properties = Object.fromEntries(Object.entries(found.properties).filter(([name]) => !/^(TIMER_|UNIQ_KEY|KEYS|TAGS|REAL_|DELAY|__)/.test(name)));
  await remove(`/v1/delays/${part(each.handle)}`);
  await post(`/v1/topics/${part(each.topic)}/messages`, { body: found.body, body_encoding: found.body_encoding, tags: found.tags || "", keys: found.keys, properties });
  say(t("The message is sent."));
}

export async function deadLetters(view, context) {
  const found = await get("/v1/dead-letters", {}, context.signal);
  replace(view, head(t("Dead letters"), { text: t("Messages that were tried as often as their group allows, or that a consumer gave up.") }),
    card(null, table(t("Groups with dead letters"), [
      [t("Group"), (each) => h("a", { href: `#/dead-letters/${part(each.group)}` }, each.group), "wide"],
      [t("Unhandled"), (each) => (each.count ? badge(count(each.count), "bad") : "0"), "num"], [t("Kept"), (each) => count(each.kept), "num"], [t("Last"), (each) => time(each.updated_ms), "num"],
    ], found.items, { empty: t("There are no dead letters.") })));
}

export async function letters(view, context) {
  const [group] = context.rest;
  const path = `/v1/dead-letters/${part(group)}`;
  const everything = h("input", { type: "checkbox" });
  const chosen = new Set();
  const place = h("div"), does = h("div", { class: "does" }), progress = h("div", { "aria-live": "polite" });
  replace(view, head(group, { crumbs: h("a", { href: "#/dead-letters" }, t("Dead letters")), does: [does] }), progress,
    h("div", { class: "filters" }, h("label", { class: "check" }, everything, t("include handled ones"))), place);
  async function resend(ids) {
    const bar = h("progress", { max: ids.length, value: 0, "aria-label": t("Progress") });
    replace(progress, card(t("Sending again"), bar));
    let sent = 0;
    const failures = [];
    for (let at = 0; at < ids.length; at += 20) {
      const part = await post(`${path}/resend`, { ids: ids.slice(at, at + 20) });
      sent += part.resent; failures.push(...part.failures);
      bar.value = at + 20;
    }
    replace(progress, failures.length ? notice(failures.slice(0, 5).join("; "), "bad") : null);
    return { sent, failures };
  }
  /** Those that were chosen; else all, page by page, until none is left or some cannot be sent. */
  async function resendMany(shown) {
    let all = 0;
    for (let ids = chosen.size ? [...chosen] : open(shown); ids.length;) {
      const { sent, failures } = await resend(ids);
      all += sent;
      ids = chosen.size || failures.length || !sent ? [] : open(await get(path, { limit: 200 }, context.signal));
    }
    say(t("{n} messages were sent again.", { n: count(all) }));
    await look();
  }
  const open = (found) => found.items.filter((each) => !each.is_resent).map((each) => each.message.id);
  async function look() {
    chosen.clear();
    const found = await get(path, { limit: 200, everything: everything.checked }, context.signal);
    const marks = () => replace(does, !context.mayChange() ? null : [
      button(chosen.size ? t("Send {n} again", { n: chosen.size }) : t("Send all again"), () => resendMany(found), "main"),
      button(t("Mark all as handled"), async () => { if (await confirm(t("Are you sure?"), t("They stay in the log, but are not listed here any more."), () => remove(path), t("Mark all as handled"))) await look(); }, "bad")]);
    marks();
    replace(place, card(null, table(t("Dead letters"), [
      ["", (each) => h("input", { type: "checkbox", "aria-label": t("Choose {name}", { name: each.message.id }), on: { change: (event) => { event.target.checked ? chosen.add(each.message.id) : chosen.delete(each.message.id); marks(); } } }), "tight"],
      [t("Dead since"), (each) => time(each.message.store_ms), "tight"], [t("From"), (each) => topicLink(each.origin_topic), "wide"], [t("Keys"), (each) => each.message.keys.join(" ")],
      [t("Body"), (each) => message(each.message.id, h("span", { class: "one" }, each.message.body.slice(0, 120) || t("(empty)"))), "wide"],
      [t("Tries"), (each) => each.tries, "num"], [t("Why"), (each) => (each.is_resent ? badge(t("sent again"), "good") : badge(each.is_exhausted ? t("tried too often") : t("given up"), "warn"))],
      ["", (each) => h("a", { class: "button small", href: `#/send?topic=${part(each.origin_topic)}&message=${part(each.message.id)}` }, t("Edit and send…")), "tight"],
    ], found.items, { empty: t("No dead letters.") }), h("div", { class: "pages" }, t("{n} in all", { n: count(found.total) }))));
  }
  everything.addEventListener("change", () => look().catch((error) => say(error.message, "bad")));
  await look();
}

export async function transactions(view, context) {
  const place = h("div");
  replace(view, head(t("Transactions"), { text: t("An open transaction blocks its readers."), does: [
    context.mayChange() ? button(t("Ask again about a half message…"), () => ask(t("Half message"), field(t("Id"), h("input", { name: "id", required: true, autofocus: true })), { act: async (given) => { await post("/v1/half-messages/resume", { id: given.id.trim() }); say(t("Its producer will be asked again.")); } })) : null] }), place);
  async function look() {
    const [found, halves] = await Promise.all([get("/v1/transactions", {}, context.signal), get("/v1/half-messages", {}, context.signal)]);
    const now = Date.now();
    replace(place, card(null, table(t("Transactions"), [
      [t("Transactional id"), (each) => each.id, "wide"], [t("State"), (each) => badge(each.state, each.is_overdue ? "bad" : each.state === "Ongoing" ? "warn" : "")], [t("Open for"), (each) => (each.state === "Ongoing" ? span(now - each.begun_ms) : "–"), "num"],
      [t("Time limit"), (each) => span(each.timeout_ms), "num"], [t("Queues"), (each) => each.queues.join(", "), "wide"], [t("Producer"), (each) => h("span", { class: "mono" }, `${each.producer_id}:${each.epoch}`)],
      ["", (each) => (each.state === "Ongoing" && context.mayChange() ? button(t("Abort"), async () => { if (await confirm(t("Are you sure?"), t("Its messages will never be delivered."), () => remove(`/v1/transactions/${part(each.id)}`), t("Abort"))) await look(); }, "small bad") : null), "tight"],
    ], found.items, { empty: t("None.") })), card(t("Half messages"), table(t("Half messages"), [
      [t("Message"), (each) => message(each.id, each.unique_key || each.id), "wide mono"], [t("Topic"), (each) => topicLink(each.topic), "wide"], [t("Producer"), (each) => each.group, "wide"],
      [t("Open for"), (each) => span(now - each.born_ms), "num"], [t("Times asked"), (each) => count(each.checks), "num"], [t("Size"), (each) => bytes(each.body_bytes), "num"],
    ], halves.items, { empty: t("None.") }), halves.total > halves.items.length ? h("div", { class: "pages" }, t("{n} in all", { n: count(halves.total) })) : null));
  }
  await look();
  context.every(3000, look);
}
