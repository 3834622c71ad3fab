// Queues, exchanges and bindings of AMQP's model, and a simulator: where would this key go, and why?

import { get, part, post, remove } from "./api.js";
import { h, replace } from "./dom.js";
import { ask, badge, bytes, button, card, confirm, count, field, head, notice, options, pager, say, table } from "./components.js";
import { later } from "./topics.js";
import { t } from "./labels.js";

const KINDS = ["direct", "fanout", "topic", "headers", "x-consistent-hash"];
const asked = (text) => (text.trim() ? JSON.parse(text) : {});
const shown = (each) => (Object.keys(each.arguments).length ? h("code", null, JSON.stringify(each.arguments)) : "–");
const within = (vhost) => `?vhost=${part(vhost)}`;

export async function queues(view, context) {
  const q = h("input", { type: "search", value: context.query.q || "", placeholder: t("part of a name") });
  const vhost = h("input", { value: context.query.vhost || "/" });
  const list = pager((after) => get("/v1/queues", { q: q.value, vhost: vhost.value, after, limit: 50 }, context.signal), (page) => table(t("Work queues"), [
    [t("Queue"), (each) => (each.topic ? h("a", { href: `#/topics/${part(each.topic)}` }, each.name) : each.name), "wide"], [t("Kind"), (each) => badge(each.kind)],
    [t("Features"), (each) => [each.durable ? badge(t("durable")) : null, " ", each.exclusive ? badge(t("exclusive")) : null, " ", each.auto_delete ? badge(t("auto-delete")) : null]],
    [t("Ready"), (each) => count(each.ready), "num"], [t("Unacknowledged"), (each) => count(each.unacked), "num"], [t("Size"), (each) => bytes(each.ready_bytes), "num"], [t("Consumers"), (each) => count(each.consumers), "num"], [t("Arguments"), shown, "wide"],
    ["", (each) => (context.mayChange() ? [
      button(t("Empty"), async () => { if (await confirm(t("Are you sure?"), t("Delete all messages of {name}?", { name: each.name }), () => remove(`/v1/queues/${part(each.name)}/messages${within(each.vhost)}`), t("Empty"))) await list.go(); }, "small"), " ",
      button(t("Delete"), async () => { if (await confirm(t("Are you sure?"), t("Delete {name} with all its messages?", { name: each.name }), () => remove(`/v1/queues/${part(each.name)}${within(each.vhost)}`))) await list.go(); }, "small bad")] : null), "tight"],
  ], page.items, { empty: t("No queue has this name.") }));
  q.addEventListener("input", later(() => list.first()));
  vhost.addEventListener("change", later(() => list.first(), 0));
  replace(view, head(t("Work queues"), { text: t("Declared by RabbitMQ's clients; durable ones are topics, too."), does: [context.mayChange() ? button(t("New queue"), async () => {
    const made = await ask(t("New queue"), h("div", { class: "fields" }, field(t("Name"), h("input", { name: "name", required: true, autofocus: true }), { full: true }),
      field(t("Arguments"), h("textarea", { name: "arguments", rows: 3, placeholder: '{"x-max-length": 1000}' }), { full: true, hint: "JSON" })), { ok: t("Create"), act: (given) => post("/v1/queues", { name: given.name, vhost: vhost.value, arguments: asked(given.arguments) }) });
    if (made) await list.first();
  }, "main") : null] }), card(null, h("div", { class: "filters" }, field(t("Name"), q), field(t("Vhost"), vhost)), list.place));
  await list.go();
}

export async function exchanges(view, context) {
  const [name] = context.rest;
  const vhost = context.query.vhost || "/";
  const simulator = h("div", { "aria-live": "polite" });
  const place = h("div"), bound = h("div");
  const inputs = { exchange: h("input", { name: "exchange", value: name || "", placeholder: t("the default exchange") }), key: h("input", { name: "key", placeholder: "order.created" }), headers: h("input", { name: "headers", placeholder: "format=pdf, pages=3" }) };
  const form = h("form", { class: "card", on: { submit: async (event) => {
    event.preventDefault();
    try {
      const found = await get("/v1/route", { vhost, exchange: inputs.exchange.value, key: inputs.key.value, headers: inputs.headers.value });
      replace(simulator, found.queues.length ? notice(t("It would go to: {queues}", { queues: found.queues.join(", ") })) : notice(t("No queue would receive it."), "warn"),
        h("ol", { class: "steps" }, found.hops.map((each) => h("li", null, h("b", null, `${each.source || t("the default exchange")} → ${each.destination}`), h("div", { class: "when" }, each.why)))));
    } catch (error) { say(error.message, "bad"); }
  } } }, h("h2", null, t("Test a route")), h("div", { class: "fields" }, field(t("Exchange"), inputs.exchange), field(t("Routing key"), inputs.key), field(t("Headers"), inputs.headers), h("div", null, h("button", { type: "submit", class: "main" }, t("Simulate")))), simulator);
  replace(view, head(name || t("Exchanges"), { crumbs: name ? h("a", { href: "#/exchanges" }, t("Exchanges")) : null, does: context.mayChange() ? [button(t("Bind…"), () => bind(name, vhost, context)), button(t("New exchange"), () => create(vhost, context), "main")] : [] }), form, place, bound);
  if (!name) {
    const list = pager((after) => get("/v1/exchanges", { vhost, after, limit: 50 }, context.signal), (page) => table(t("Exchanges"), [
      [t("Exchange"), (each) => (each.name ? h("a", { href: `#/exchanges/${part(each.name)}?vhost=${part(vhost)}` }, each.name) : t("(default)")), "wide"], [t("Kind"), (each) => badge(each.kind, "accent")],
      [t("Features"), (each) => [each.durable ? badge(t("durable")) : null, " ", each.internal ? badge(t("internal")) : null, " ", each.auto_delete ? badge(t("auto-delete")) : null]], [t("Bindings"), (each) => count(each.bindings), "num"], [t("Arguments"), shown, "wide"],
      ["", (each) => (context.mayChange() && each.name && !each.name.startsWith("amq.") ? button(t("Delete"), async () => { if (await confirm(t("Are you sure?"), t("Delete {name} and its bindings?", { name: each.name }), () => remove(`/v1/exchanges/${part(each.name)}${within(vhost)}`))) await list.go(); }, "small bad") : null), "tight"],
    ], page.items));
    replace(place, card(null, list.place));
    await list.go();
  }
  const bindings = await get("/v1/bindings", { vhost, ...(name ? { source: name } : {}) }, context.signal);
  replace(bound, card(t("Bindings"), table(t("Bindings"), [
    [t("From"), (each) => each.source || t("(default)")], [t("Routing key"), (each) => h("code", null, each.key)], [t("To"), (each) => [badge(each.kind), " ", each.destination], "wide"], [t("Arguments"), shown, "wide"],
    ["", (each) => (context.mayChange() && each.source ? button(t("Unbind"), async () => { await post("/v1/bindings", { ...each, vhost, remove: true }); context.again(); }, "small bad") : null), "tight"],
  ], bindings.items)));
}

async function create(vhost, context) {
  const made = await ask(t("New exchange"), h("div", { class: "fields" }, field(t("Name"), h("input", { name: "name", required: true, autofocus: true })), field(t("Kind"), h("select", { name: "kind" }, options("topic", KINDS.map((each) => [each, each])))),
    field(t("Arguments"), h("textarea", { name: "arguments", rows: 3, placeholder: '{"alternate-exchange": "unrouted"}' }), { full: true, hint: "JSON" })), { ok: t("Create"), act: (given) => post("/v1/exchanges", { name: given.name, kind: given.kind, vhost, arguments: asked(given.arguments) }) });
  if (made) context.again();
}

async function bind(source, vhost, context) {
  const made = await ask(t("Bind"), h("div", { class: "fields" }, field(t("From"), h("input", { name: "source", required: true, value: source || "" })), field(t("Routing key"), h("input", { name: "key" })),
    field(t("Kind"), h("select", { name: "kind" }, options("queue", [["queue", t("queue")], ["exchange", t("exchange")], ["topic", t("topic")]]))), field(t("To"), h("input", { name: "destination", required: true })), field(t("Arguments"), h("textarea", { name: "arguments", rows: 2 }), { full: true, hint: "JSON" })),
  { ok: t("Bind"), act: (given) => post("/v1/bindings", { source: given.source, destination: given.destination, kind: given.kind, key: given.key, vhost, arguments: asked(given.arguments) }) });
  if (made) context.again();
}
