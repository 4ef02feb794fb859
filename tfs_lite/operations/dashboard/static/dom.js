// A small virtual DOM: what a view returns is compared with what is there, so that focus, selection and scrolling stay.
// Every text passes `shown` and enters as a text node or an attribute; nothing ever becomes markup.
import { MARKS, shown } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";

// h("td.n", { title }, kids...): the classes behind the tag, the attributes and the kids may be left out.
export function h(name, props, ...kids) {
	if (typeof props !== "object" || Array.isArray(props) || props?.tag) {
		kids.unshift(props);
		props = null;
	}
	const [tag, ...classes] = name.split(".");
	if (classes.length) props = { class: classes.join(" "), ...props };
	return { tag, props: props || {}, kids: kids.flat(Infinity).filter((kid) => (kid ?? false) !== false) };
}

export const scroll = (label, ...kids) => h("div.scroll", { tabindex: 0, role: "group", "aria-label": label }, kids);

// A word in a colour, with a mark beside it.
export const pill = (tone, word) => h("span", { class: "badge " + tone }, h("i", { "aria-hidden": true }, MARKS[tone]), word);

export function render(root, ...kids) {
	reconcile(root, h("", null, kids).kids);
}

function reconcile(parent, kids) {
	const keyed = new Map();
	for (let node = parent.firstChild; node; node = node.nextSibling) {
		const key = node.vdom?.props.key;
		if (key !== undefined) keyed.set(key, node);
	}
	let at = parent.firstChild;
	for (const kid of kids) {
		const node = typeof kid === "object" ? element(parent, at, kid, keyed) : text(at, shown(String(kid)));
		if (node === at) at = at.nextSibling;
		else parent.insertBefore(node, at);
	}
	while (at) {
		const next = at.nextSibling;
		at.remove();
		at = next;
	}
}

function text(at, words) {
	if (at?.nodeType !== Node.TEXT_NODE) return document.createTextNode(words);
	if (at.data !== words) at.data = words;
	return at;
}

function element(parent, at, kid, keyed) {
	const { key } = kid.props;
	let node = key === undefined ? at : keyed.get(key);
	if (!node?.vdom || node.vdom.tag !== kid.tag || node.vdom.props.key !== key) {
		const inside = kid.tag === "svg" || parent.namespaceURI === SVG;
		node = inside ? document.createElementNS(SVG, kid.tag) : document.createElement(kid.tag);
		if (kid.tag === "button") node.type = "button";
		node.vdom = h(kid.tag);
	}
	patch(node, node.vdom.props, kid.props);
	reconcile(node, kid.kids);
	node.vdom = kid;
	kid.kids = [];
	return node;
}

function patch(node, before, props) {
	for (const name in before) if (!(name in props)) set(node, name, null);
	for (const name in props) if (before[name] !== props[name]) set(node, name, props[name], before[name]);
}

function set(node, name, value, before) {
	if (name === "key") return;
	if (name.startsWith("on")) node[name] = value;
	else if (name === "css") for (const [rule, of] of Object.entries(value || {})) node.style.setProperty(rule, of);
	else if (name === "value") node.value = value ?? "";
	else if (value === null || value === undefined || (value === false && !name.startsWith("aria-"))) node.removeAttribute(name);
	else node.setAttribute(name, shown(String(value)));
}
