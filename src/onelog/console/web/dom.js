// Elements, made without ever reading HTML: all text goes through text nodes, so nothing that a
// message, a name or an error says can become markup.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "path", "g", "line", "rect", "circle", "text", "polyline", "title"]);

/** An element. `on` in the attributes holds listeners; false, null and undefined are left out. */
export function h(tag, attributes, ...children) {
  const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === false || value === null || value === undefined) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "value" || name === "checked" || name === "disabled" || name === "selected") {
      element[name] = value;
    } else if (name === "href") {
      element.setAttribute("href", safe(String(value)));
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  add(element, children);
  return element;
}

/** Only pages of this server are linked to, and nothing that runs. */
function safe(address) {
  return /^(#|\/)/.test(address) || /^https?:\/\//i.test(address) ? address : "#";
}

export function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export function replace(element, ...children) {
  element.replaceChildren();
  return add(element, children);
}
