// The broker: who is connected, the cluster around it, Spark, and its settings.

import { get, part, patch, post, remove } from "./api.js";
import { h, replace } from "./dom.js";
import { ask, badge, bytes, button, card, confirm, count, facts, field, head, notice, options, pager, rate, say, span, table, time } from "./components.js";
import { later } from "./topics.js";
import { t } from "./labels.js";

export async function connections(view, context) {
  const q = h("input", { type: "search", value: context.query.q || "", placeholder: t("address, client or group") });
  const list = pager((skip) => get("/v1/connections", { q: q.value, skip: skip || 0, limit: 100 }, context.signal), (page) => table(t("Connections"), [
    [t("Protocol"), (each) => badge(each.protocol, "accent")], [t("Address"), (each) => h("span", { class: "mono" }, each.address)], [t("To"), (each) => h("span", { class: "mono" }, each.local)],
    [t("Client"), (each) => each.client_id || "–", "wide"], [t("Groups"), (each) => each.groups.join(", ") || "–", "wide"], [t("Language"), (each) => each.language || "–"],
    [t("State"), (each) => [each.secure ? badge("TLS", "good") : null, " ", each.is_congested ? badge(t("does not read"), "warn") : null]],
    ["", (each) => (context.mayChange() ? button(t("Close"), async () => { if (await confirm(t("Are you sure?"), t("Close the connection of {name}? Its client may come again.", { name: each.address }), () => remove(`/v1/connections/${part(each.id)}`), t("Close"))) { say(t("Closed.")); await list.go(); } }, "small bad") : null), "tight"],
  ], page.items));
  q.addEventListener("input", later(() => list.first()));
  replace(view, head(t("Connections")), card(null, h("div", { class: "filters" }, field(t("Search"), q)), list.place));
  await list.go();
}

export async function cluster(view, context) {
  const [found, replicas] = await Promise.all([get("/v1/cluster", {}, context.signal), get("/v1/cluster/replicas", {}, context.signal)]);
  const hand = (each) => async () => { if (await confirm(t("Are you sure?"), t("Make node {n} the master? Clients connect again.", { n: each.node }), () => post("/v1/cluster/promote", { node: each.node }), t("Make master"))) context.again(); };
  const drain = (each) => async () => { if (await confirm(t("Are you sure?"), t("Have node {n} leave the set, so that it can be stopped?", { n: each.node }), () => post("/v1/cluster/drain", { node: each.node }), t("Drain"))) context.again(); };
  replace(view, head(t("Cluster"), { badges: [badge(found.broker_id === 0 ? t("master") : t("slave"), "good")] }),
    found.trouble ? notice(found.trouble, "warn") : null,
    h("div", { class: "grid" },
      card(t("This node"), facts([[t("Node"), found.broker_id], [t("Epoch"), found.epoch], [t("Followers connect to"), found.ha_address || "–"], [t("Replicated"), found.replicated ? t("yes") : t("no")], [t("Name servers"), found.nameservers.join(", ") || "–"]])),
      card(t("Followers"), table(t("Followers"), [[t("Node"), (each) => (each.node_id < 0 ? "–" : each.node_id)], [t("Address"), (each) => h("span", { class: "mono" }, each.address)], [t("Behind"), (each) => bytes(each.behind_bytes), "num"], [t("In time"), (each) => span(each.behind_ms), "num"], [t("State"), (each) => badge(each.in_sync ? t("in sync") : t("behind"), each.in_sync ? "good" : "warn")]], found.followers, { empty: t("This node has no followers.") }))),
    replicas.total ? card(t("Replicas"), table(t("Replicas"), [
      [t("Broker"), (each) => each.broker], [t("Node"), (each) => each.node, "num"], [t("Role"), (each) => badge(t(each.role), each.role === "master" ? "accent" : each.role === "missing" ? "bad" : "")], [t("Address"), (each) => h("span", { class: "mono" }, each.address)],
      [t("Epoch"), (each) => each.epoch, "num"], [t("Behind"), (each) => (each.lag_bytes === null ? "–" : bytes(each.lag_bytes)), "num"], [t("In time"), (each) => (each.lag_ms === null ? "–" : span(each.lag_ms)), "num"], [t("State"), (each) => [badge(each.in_sync ? t("in sync") : t("behind"), each.in_sync ? "good" : "warn"), " ", each.remark], "wide"],
      ["", (each) => (context.mayChange() ? h("div", { class: "does" }, each.role !== "master" && each.in_sync ? [button(t("Make master"), hand(each), "small"), " "] : null, each.role !== "missing" ? button(t("Drain"), drain(each), "small bad") : null) : null), "tight"],
    ], replicas.items)) : null,
    card(t("Brokers"), table(t("Brokers"), [
      [t("Broker"), (each) => [each.name, " ", each.is_this ? badge(t("this one"), "accent") : null]], [t("Cluster"), (each) => each.cluster],
      [t("Nodes"), (each) => Object.entries(each.members).map(([id, address]) => h("div", { class: "mono" }, `${id === "0" ? t("master") : `${t("slave")} ${id}`}  ${address}`))],
    ], found.brokers, { empty: t("No name server is known.") })));
}

export async function lake(view, context) {
  const place = h("div");
  const around = await get("/v1/cluster", {}, context.signal);
  const names = around.nameservers.join(";");
  const line = (text, code) => [h("p", null, text), h("pre", { class: "body", tabindex: 0 }, code)];
  replace(view, head(t("Lake and Spark"), { text: t("Every topic is a table. Spark reads and writes topics, and keeps lake tables fresh.") }), place,
    card(t("Begin here"), line(t("Keep a lake table of a topic:"), `onelog lake sync TOPIC --to ./lake --every 10${names ? ` --nameserver ${names}` : ""}`), line(t("Show its tables here:"), "onelog up --set http.lake=./lake"), line(t("A topic as a table in Spark:"), `spark.read.format("onelog")${names ? `.option("nameserver", "${names}")` : ""}\n     .option("subscribe", "TOPIC").load()`), line(t("Ready-made jobs:"), "onelog job --help")));
  async function look() {
    const found = await get("/v1/lake", {}, context.signal);
    const topic = (name) => h("a", { href: `#/topics/${part(name)}` }, name);
    replace(place, found.trouble ? notice(found.trouble, "warn") : null,
      card(t("Lake tables"), table(t("Lake tables"), [[t("Table"), (each) => each.name, "wide"], [t("Format"), (each) => badge(each.form)], [t("Rows"), (each) => count(each.rows), "num"], [t("Files"), (each) => count(each.files), "num"], [t("Size"), (each) => bytes(each.size_bytes), "num"]], found.tables,
        { empty: found.folder ? t("None.") : t("The setting http.lake names no folder.") })),
      h("div", { class: "grid" },
        card(t("Queries that keep tables fresh"), table(t("Queries that keep tables fresh"), [[t("Query"), (each) => each.name, "wide"], [t("Topics"), (each) => each.topics.map((name) => [topic(name), " "]), "wide"], [t("Batch"), (each) => count(each.batch), "num"], [t("State"), (each) => badge(each.is_open ? t("writes") : t("done"), each.is_open ? "accent" : "good")], [t("Lag"), (each) => count(each.lag), "num"], [t("Last"), (each) => time(each.updated_ms), "num"]], found.queries, { empty: t("None.") })),
        card(t("Read by Spark and tools"), table(t("Read by Spark and tools"), [[t("Topic"), (each) => topic(each.topic), "wide"], [t("Out per second"), (each) => rate(each.per_second), "num"]], found.reads, { empty: t("No reader since start-up.") }))));
  }
  await look();
  context.every(5000, look);
}

export async function settings(view, context) {
  const q = h("input", { type: "search", placeholder: t("part of a name or meaning") });
  const only = h("select", null, options("", [["", t("all")], ["set", t("not the default")], ["live", t("can change now")]]));
  const place = h("div");
  let all = (await get("/v1/config", {}, context.signal)).items;
  function show() {
    const wanted = q.value.toLowerCase();
    const rows = all.filter((each) => `${each.key} ${each.help}`.toLowerCase().includes(wanted) && (!only.value || (only.value === "set" ? each.source !== "default" : each.can_change)));
    replace(place, card(null, table(t("Settings"), [
      [t("Setting"), (each) => h("code", null, each.key), "tight"], [t("Value"), (each) => h("code", null, String(each.value) || "\u2014"), "wide"],
      [t("From"), (each) => badge(each.source, each.source === "default" ? "" : "accent")], [t("Meaning"), (each) => each.help, "wide"],
      ["", (each) => (each.can_change && context.mayChange() ? button(t("Change"), () => change(each), "small") : null), "tight"],
    ], rows), h("div", { class: "pages" }, t("{n} in all", { n: count(rows.length) }))));
  }
  async function change(each) {
    const input = typeof each.value === "boolean" ? h("select", { name: "value" }, options(String(each.value), [["true", "true"], ["false", "false"]]))
      : each.choices.length ? h("select", { name: "value" }, options(each.value, each.choices.map((one) => [one, one]))) : h("input", { name: "value", value: each.value });
    const done = await ask(each.key, [h("p", { class: "hint" }, each.help, ". ", t("It lasts until the broker is restarted.")), field(t("Value"), input)], { ok: t("Save"), act: async (given) => {
      const value = typeof each.value === "boolean" ? given.value === "true" : typeof each.value === "number" ? Number(given.value) : given.value;
      return patch("/v1/config", { [each.key]: value });
    } });
    if (done) { all = done.items; say(t("Changed.")); show(); }
  }
  q.addEventListener("input", show);
  only.addEventListener("change", show);
  replace(view, head(t("Settings"), { text: t("Every setting, with the source of its value.") }), h("div", { class: "filters" }, field(t("Search"), q), field(t("Show"), only)), place);
  show();
}
