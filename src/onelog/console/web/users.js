// Users and roles of this broker, and what they may do.

import { get, part, patch, post, remove } from "./api.js";
import { h, replace } from "./dom.js";
import { ask, badge, button, card, confirm, field, head, notice, options, pager, say, table, time } from "./components.js";
import { later } from "./topics.js";
import { t } from "./labels.js";

const ACTIONS = ["publish", "consume", "create", "alter", "delete", "describe", "admin"];
const KINDS = ["topic", "group", "exchange", "queue", "vhost", "broker", "transaction", "mqtt", "*"];
const written = (each) => `${each.actions.join(", ")} ${each.kind}:${each.name}${each.match === "prefix" ? "*" : ""}${each.hosts.length ? ` @ ${each.hosts.join(", ")}` : ""}`;
const rules = (each) => (each.permissions.length ? each.permissions.map((rule) => h("div", null, rule.effect === "deny" ? [badge(t("may not"), "bad"), " "] : null, h("code", null, written(rule)))) : "–");
const words = (text) => text.split(/[\s,]+/).filter(Boolean);

export async function users(view, context) {
  const q = h("input", { type: "search", value: context.query.q || "", placeholder: t("part of a name") });
  const roleList = h("div");
  const list = pager((after) => get("/v1/users", { q: q.value, after, limit: 50 }, context.signal), (page) => [
    !page.total && !q.value ? notice(t("There are no users: everybody on this machine may do everything, and nobody else may do anything. The first user must be an administrator; from then on everybody logs in."), "warn") : null,
    table(t("Users"), [
      [t("User"), (each) => h("b", null, each.name), "wide"], [t("Roles"), (each) => each.roles.map((role) => [badge(role, role === "admin" ? "accent" : ""), " "])],
      [t("State"), (each) => badge(each.enabled ? t("may log in") : t("locked"), each.enabled ? "good" : "bad")], [t("May sign"), (each) => (each.signing ? t("yes") : t("no"))],
      [t("Permissions"), rules, "wide"],
      ["", (each) => (context.mayChange() ? h("div", { class: "does" }, button(t("Change"), () => change(each), "small"), " ", button(t("Permissions"), () => permit(each, `/v1/users/${part(each.name)}`), "small"), " ",
        button(t("Delete"), async () => { if (await confirm(t("Are you sure?"), t("Delete the user {name}?", { name: each.name }), () => remove(`/v1/users/${part(each.name)}`))) await list.go(); }, "small bad")) : null), "tight"],
    ], page.items, { empty: t("No user has this name.") })]);
  async function roles() {
    const found = await get("/v1/roles", { limit: 1000 }, context.signal);
    replace(roleList, table(t("Roles"), [
      [t("Role"), (each) => h("b", null, each.name), "wide"], [t("Users"), (each) => each.users, "num"], [t("Permissions"), rules, "wide"],
      ["", (each) => (context.mayChange() && each.name !== "admin" ? h("div", { class: "does" }, button(t("Permissions"), () => permit(each, `/v1/roles/${part(each.name)}`), "small"), " ",
        button(t("Delete"), async () => { if (await confirm(t("Are you sure?"), t("Delete the role {name}?", { name: each.name }), () => remove(`/v1/roles/${part(each.name)}`))) await again(); }, "small bad")) : null), "tight"],
    ], found.items));
  }
  const again = () => Promise.all([list.go(), roles()]);
  async function create() {
    const made = await ask(t("New user"), h("div", { class: "fields" }, field(t("Name"), h("input", { name: "name", required: true, maxlength: 255, autofocus: true, autocomplete: "off" })),
      field(t("Password"), h("input", { name: "password", type: "password", required: true, autocomplete: "new-password" })),
      field(t("Roles"), h("input", { name: "roles", placeholder: "admin" }), { hint: t("between spaces") }), signing()),
    { ok: t("Create"), act: (given) => post("/v1/users", { name: given.name, password: given.password, roles: words(given.roles), signing: Boolean(given.signing) }) });
    if (made) { say(t("User {name} was created.", { name: made.name })); await again(); }
  }
  async function change(each) {
    const done = await ask(each.name, h("div", { class: "fields" }, field(t("New password"), h("input", { name: "password", type: "password", autocomplete: "new-password" }), { hint: t("empty: as it is") }),
      field(t("Roles"), h("input", { name: "roles", value: each.roles.join(" ") }), { hint: t("between spaces") }), signing(),
      h("label", { class: "check" }, h("input", { type: "checkbox", name: "enabled", checked: each.enabled }), t("may log in"))),
    { ok: t("Save"), act: (given) => patch(`/v1/users/${part(each.name)}`, { roles: words(given.roles), enabled: Boolean(given.enabled), ...(given.password ? { password: given.password, signing: Boolean(given.signing) } : {}) }) });
    if (done) { say(t("Changed.")); await again(); }
  }
  async function permit(each, path) {
    const kept = [...each.permissions];
    const place = h("div");
    const shown = () => replace(place, table(t("Permissions"), [["", (rule) => [rule.effect === "deny" ? [badge(t("may not"), "bad"), " "] : null, h("code", null, written(rule))], "wide"],
      ["", (rule) => button(t("Revoke"), async () => { kept.splice(kept.indexOf(rule), 1); shown(); }, "small bad"), "tight"]], kept, { empty: t("No rules of its own.") }));
    shown();
    const one = { effect: h("select", null, options("allow", [["allow", t("may")], ["deny", t("may not")]])), kind: h("select", null, options("topic", KINDS.map((kind) => [kind, kind === "*" ? t("everything") : t(kind)]))),
      name: h("input", { value: "*" }), match: h("select", null, options("pattern", [["pattern", t("wildcards")], ["literal", t("exact name")], ["prefix", t("prefix")]])), hosts: h("input", { placeholder: t("all") }) };
    const actions = ACTIONS.map((action) => h("input", { type: "checkbox", value: action, checked: action === "publish" }));
    const add = async () => { kept.push({ actions: actions.filter((box) => box.checked).map((box) => box.value), kind: one.kind.value, name: one.name.value || "*", match: one.match.value, effect: one.effect.value, hosts: words(one.hosts.value) }); shown(); };
    const done = await ask(t("Permissions of {name}", { name: each.name }), [place, h("fieldset", null, h("legend", null, t("Add a rule")), h("div", { class: "fields" }, field(t("Rule"), one.effect), field(t("Kind"), one.kind), field(t("Name"), one.name), field(t("Match"), one.match), field(t("Only from"), one.hosts, { hint: t("addresses") }),
      h("div", { class: "full checks", role: "group", "aria-label": t("Actions") }, ACTIONS.map((action, at) => h("label", { class: "check" }, actions[at], t(action)))), h("div", { class: "full" }, button(t("Add"), add, "small"))))],
    { ok: t("Save"), act: () => patch(path, { permissions: kept }) });
    if (done) { say(t("Changed.")); await again(); }
  }
  const signing = () => h("label", { class: "check" }, h("input", { type: "checkbox", name: "signing", checked: true }), t("RocketMQ's clients may sign: the broker keeps the password for that"));
  q.addEventListener("input", later(() => list.first()));
  replace(view, head(t("Users"), { text: t("Of this broker; the command onelog user changes all brokers of a cluster."), does: context.mayChange() ? [button(t("New role"), async () => {
    const made = await ask(t("New role"), field(t("Name"), h("input", { name: "name", required: true, maxlength: 255, autofocus: true })), { ok: t("Create"), act: (given) => post("/v1/roles", { name: given.name }) });
    if (made) await again();
  }), button(t("New user"), create, "main")] : [] }),
  card(null, h("div", { class: "filters" }, field(t("Name"), q)), list.place), card(t("Roles"), roleList));
  await again();
}

/** What administrators did, and what others tried. */
export async function audit(view, context) {
  const user = h("input", { type: "search", value: context.query.user || "", placeholder: t("all") });
  const place = h("div");
  async function look() {
    const found = await get("/v1/audit", { user: user.value.trim(), limit: 200 }, context.signal);
    replace(place, card(null, table(t("Audit"), [
      [t("Time"), (each) => time(each.time), "tight"], [t("User"), (each) => each.user || "–"], [t("Protocol"), (each) => badge(each.protocol)], [t("Address"), (each) => h("span", { class: "mono" }, each.address)],
      [t("Action"), (each) => h("code", null, each.action)], [t("Thing"), (each) => each.thing, "wide"], [t("Result"), (each) => badge(t(each.result), each.result === "refused" ? "bad" : "good")],
    ], found.items, { empty: t("No actions yet.") })));
  }
  user.addEventListener("input", later(look));
  replace(view, head(t("Audit"), { text: t("What administrators did, and what others tried; the newest first.") }), h("div", { class: "filters" }, field(t("User"), user)), place);
  await look();
  context.every(5000, look);
}
