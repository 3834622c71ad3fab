// Messages: searching and browsing, one message with its body decoded, and its story.

import { get, part, put } from "./api.js";
import { h, replace } from "./dom.js";
import { badge, bytes, button, card, count, facts, field, head, notice, options, say, table, time } from "./components.js";
import { protobuf, json, hexdump, raw } from "./decode.js";
import { decoded } from "./schemas.js";
import { t } from "./labels.js";

const link = (each, text) => h("a", { href: `#/messages/${part(each.id)}?offset=${each.offset}&topic=${part(each.topic)}`, class: "mono" }, text);
const PROTOCOLS = { rocketmq: "RocketMQ", kafka: "Kafka", amqp: "AMQP", stomp: "STOMP", mqtt: "MQTT", http: "HTTP" };
const short = (each) => h("span", { class: "one", title: each.body.slice(0, 200) }, each.body_encoding === "text" ? each.body.slice(0, 140) || t("(empty)") : t("{size}, no text", { size: bytes(each.body_bytes) }));
const when = (text) => (text ? new Date(text).getTime() : undefined);

export async function messages(view, context) {
  const known = h("datalist", { id: "all-topics" });
  const topic = h("input", { name: "topic", list: "all-topics", required: true, value: context.query.topic || "", placeholder: "orders" });
  const place = h("div");
  const id = h("input", { name: "id", placeholder: t("id of a message"), autocomplete: "off" });
  replace(view, head(t("Messages"), { text: t("Browsing consumes nothing: the log keeps every message until its retention ends.") }),
    h("form", { class: "card", on: { submit: (event) => { event.preventDefault(); if (id.value.trim()) context.go(`#/messages/${part(id.value.trim())}`); else context.go(`#/messages?topic=${part(topic.value)}`); } } },
      h("div", { class: "fields" }, field(t("Topic"), topic), known, field(t("or message id"), id), h("div", null, h("button", { type: "submit", class: "main" }, t("Show"))))),
    place);
  get("/v1/topics", { limit: 1000 }, context.signal).then((all) => replace(known, all.items.map((each) => h("option", { value: each.name })))).catch(() => {});
  if (context.query.topic) await results(place, context, context.query.topic);
}

/** The search form of a topic, with what it finds. */
export async function results(place, context, topic) {
  const from = context.query;
  const inputs = {
    queue: h("input", { name: "queue", type: "number", min: 0, value: from.queue || "", placeholder: t("all") }),
    offset: h("input", { name: "offset", type: "number", min: 0, value: from.offset || "" }),
    key: h("input", { name: "key", value: from.key || "" }),
    tag: h("input", { name: "tag", value: from.tag || "", placeholder: "a || b" }),
    sql: h("input", { name: "sql", value: from.sql || "", placeholder: "price > 10 AND colour = 'red'" }),
    from: h("input", { name: "from", type: "datetime-local", step: 1, value: from.from || "" }),
    to: h("input", { name: "to", type: "datetime-local", step: 1, value: from.to || "" }),
  };
  const found = h("div", { "aria-live": "polite" });
  const form = h("form", { class: "card", on: { submit: (event) => { event.preventDefault(); look({}).catch((error) => say(error.message, "bad")); } } },
    h("div", { class: "fields" }, field(t("Key"), inputs.key), field(t("Tags"), inputs.tag), field(t("SQL-92 condition"), inputs.sql),
      field(t("From"), inputs.from), field(t("To"), inputs.to), field(t("Queue"), inputs.queue), field(t("Offset"), inputs.offset),
      h("div", null, h("button", { type: "submit", class: "main" }, t("Search")))));
  replace(place, form, found);
  async function look(more) {
    const page = await get(`/v1/topics/${part(topic)}/messages`, {
      queue: inputs.queue.value, offset: inputs.offset.value, key: inputs.key.value, tag: inputs.tag.value, sql: inputs.sql.value,
      from_ms: when(inputs.from.value), to_ms: when(inputs.to.value), limit: 40, ...more }, context.signal);
    const next = page.next_offset !== null ? { offset: page.next_offset } : page.next_to_ms !== null ? { to_ms: page.next_to_ms } : null;
    replace(found, card(null, table(t("Messages"), [
      [t("Stored"), (each) => time(each.store_ms), "tight"],
      [t("Place"), (each) => h("span", { class: "mono" }, `${each.queue}@${each.offset}`), "num"],
      [t("Keys"), (each) => each.keys.join(" "), "wide"], [t("Tags"), (each) => each.tags || ""],
      [t("Body"), (each) => link(each, short(each)), "wide"], [t("Size"), (each) => bytes(each.body_bytes), "num"],
    ], page.items, { empty: t("No message matches.") }),
    h("div", { class: "pages" }, h("span", null, t("{n} looked at", { n: count(page.looked_at) })),
      next ? h("div", { class: "does" }, button(t("Next"), () => look(next), "small")) : null)));
  }
  await look({});
}

export async function message(view, context) {
  const [id] = context.rest;
  const { message: found, form, views, schema } = await get(`/v1/messages/${part(id)}`, { offset: context.query.offset, topic: context.query.topic }, context.signal);
  replace(view, head(found.keys[0] || found.unique_key || id, {
    crumbs: [h("a", { href: "#/topics" }, t("Topics")), " / ", h("a", { href: `#/topics/${part(found.topic)}` }, found.topic)],
    badges: [badge(`${t("Queue")} ${found.queue} @ ${found.offset}`), badge(t("stored as {protocol}", { protocol: PROTOCOLS[form] })), found.tags ? badge(found.tags, "accent") : null],
    does: [h("a", { class: "button", href: `#/trace/${part(id)}?topic=${part(found.topic)}` }, t("Trace")),
      h("a", { class: "button", href: `#/send?topic=${part(found.topic)}&message=${part(id)}&offset=${found.offset}` }, t("Send again…"))] }),
  h("div", { class: "grid" },
    card(t("Body"), body(found, schema, context)),
    card(t("About"), facts([
      [t("Id"), h("span", { class: "mono" }, found.id)], [t("Unique key"), h("span", { class: "mono" }, found.unique_key || "–")], [t("Keys"), found.keys.join(" ") || "–"],
      [t("Born"), [time(found.born_ms), " ", h("span", { class: "mono" }, found.born_host)]], [t("Stored"), [time(found.store_ms), " ", h("span", { class: "mono" }, found.store_host)]],
      [t("Log offset"), h("span", { class: "mono" }, found.log_offset)], [t("Size"), `${bytes(found.size)}, ${t("Body")} ${bytes(found.body_bytes)}`], [t("Tried again"), found.reconsume_times], [t("Flags"), h("span", { class: "mono" }, `${found.flag} / ${found.sys_flag}`)]]))),
  card(t("Properties"), table(t("Properties"), [[t("Name"), (each) => h("code", null, each[0])], [t("Value"), (each) => h("code", null, each[1]), "wide"]], Object.entries(found.properties))),
  card(t("As each protocol sees it"), h("div", { class: "grid" }, views.map((each) => h("div", null, h("h3", null, PROTOCOLS[each.protocol], each.protocol === form ? [" ", badge(t("as it came"), "accent")] : null),
    facts(each.fields.map(({ name, value, encoding }) => [name, value === null ? "null" : h("code", null, encoding === "base64" ? `base64 ${value}` : value || "\u2014")])))))));
}

function body(found, kept, context) {
  const data = raw(found);
  const asked = schemaForm(found, kept, context, () => pick("schema"));
  const ways = { json: ["JSON", () => json(data)], text: [t("Text"), () => new TextDecoder().decode(data)], hex: ["Hex", () => hexdump(data)], protobuf: ["Protobuf", () => protobuf(data)],
    schema: [t("By schema"), () => bySchema(data, asked.schema())], base64: ["base64", () => btoa(Array.from(data.slice(0, 65536), (each) => String.fromCharCode(each)).join(""))] };
  const shown = h("pre", { class: "body", id: "body", role: "tabpanel", tabindex: 0, "aria-label": t("Body") });
  const buttons = Object.fromEntries(Object.entries(ways).map(([name, [text]]) => [name, h("button", { type: "button", role: "tab", "aria-controls": "body", "aria-selected": "false", on: { click: () => pick(name) } }, text)]));
  function pick(name) {
    let text;
    try { text = ways[name][1](); } catch (error) { text = `(${error.message})`; }
    shown.className = name === "hex" ? "body hex" : "body";
    asked.place.hidden = name !== "schema";
    replace(shown, text);
    for (const [each, made] of Object.entries(buttons)) made.setAttribute("aria-selected", String(each === name));
  }
  const fits = (name) => { try { ways[name][1](); return true; } catch { return false; } };
  pick(kept && fits("schema") ? "schema" : fits("json") ? "json" : found.body_encoding === "base64" ? "hex" : "text");
  return [found.trouble ? notice(found.trouble, "warn") : null, found.body_is_cut ? notice(t("Only the beginning is shown."), "warn") : null, h("div", { class: "tabs", role: "tablist", "aria-label": t("How the body is shown") }, Object.values(buttons)), shown, asked.place];
}

function bySchema(data, schema) {
  if (!schema.schema.trim()) throw new Error(t("Give a schema below."));
  const { value, schemaId } = decoded(data, schema);
  const text = JSON.stringify(value, null, 2);
  return schemaId === null ? text : `${t("Schema number {n}", { n: schemaId })}\n${text}`;
}

/** A schema for this body, and for all bodies of the topic if that is wanted. */
function schemaForm(found, kept, context, decode) {
  const format = h("select", null, options(kept?.format || "avro", [["avro", "Avro"], ["protobuf", "Protobuf"]]));
  const name = h("input", { value: kept?.message || "", placeholder: t("the first") });
  const schema = h("textarea", { rows: 6, spellcheck: "false" }, kept?.schema || "");
  const given = () => ({ format: format.value, schema: schema.value, message: name.value.trim() });
  const keep = async (what, said) => { await put(`/v1/topics/${part(found.topic)}/schema`, { schema: what }); say(said); };
  const place = h("div", { class: "fields below" }, field(t("Format"), format), field(t("Message of the .proto file"), name), field(t("Schema"), schema, { full: true, hint: t("an Avro schema in JSON, or a .proto file") }),
    h("div", { class: "full does" }, button(t("Decode"), async () => decode(), "main"),
      context.mayChange() ? [button(t("Save for the topic"), () => keep(given(), t("Saved."))), button(t("Remove the schema"), () => keep(null, t("The schema was removed.")))] : null));
  return { place, schema: given };
}

export async function trace(view, context) {
  const id = h("input", { name: "id", required: true, value: context.rest[0] || "", placeholder: t("id or unique key") });
  const topic = h("input", { name: "topic", value: context.query.topic || "", placeholder: t("if it was not traced") });
  const place = h("div", { "aria-live": "polite" });
  replace(view, head(t("Trace"), { text: t("The history of one message, from its producer to every consumer.") }),
    h("form", { class: "card", on: { submit: (event) => { event.preventDefault(); context.go(`#/trace/${part(id.value.trim())}?topic=${part(topic.value.trim())}`); } } },
      h("div", { class: "fields" }, field(t("Message"), id), field(t("Topic"), topic), h("div", null, h("button", { type: "submit", class: "main" }, t("Show"))))), place);
  if (!context.rest.length) return;
  const found = await get(`/v1/messages/${part(context.rest[0])}/trace`, { topic: context.query.topic }, context.signal);
  const kinds = { dead: "bad", failed: "bad", consumed: "good", stored: "good" };
  replace(place, found.traced ? null : notice(t("No client traced it: when it was sent and delivered is not known."), "warn"),
    h("div", { class: "grid" },
      card(t("Steps"), h("ol", { class: "steps" }, found.steps.map((each) => h("li", { class: kinds[each.step] || null },
        h("b", null, t(each.step)), each.group ? [" · ", h("a", { href: `#/groups/${part(each.group)}` }, each.group)] : null, each.retry !== null && each.retry > 0 ? ` · ${t("retry {n}", { n: each.retry })}` : null,
        h("div", { class: "when" }, time(each.at_ms), ` · +${count(each.since_born_ms)} ms`, each.took_ms !== null ? ` · ${t("took {n} ms", { n: each.took_ms })}` : null, each.place ? ` · ${each.place}` : null),
        each.note ? h("div", { class: "hint" }, each.note) : null)))),
      card(t("Consumer groups"), table(t("Consumer groups"), [[t("Group"), (each) => h("a", { href: `#/groups/${part(each.group)}` }, each.group)], [t("State"), (each) => badge(t(each.state))], [t("Since"), (each) => time(each.at_ms)], [t("Deliveries"), (each) => each.deliveries, "num"]], found.groups, { empty: t("No consumers.") }))));
}

