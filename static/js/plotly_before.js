// Before plotly.js: it would add a style element for maps, which the page's policy refuses and which no chart here needs.
document.head.appendChild = (node) => node.localName === "style" ? node : Node.prototype.appendChild.call(document.head, node);
// A colour bar empties its style by setting it, which the policy reports; removing it is the same and allowed.
const setAttributeOf = Element.prototype.setAttribute;
Element.prototype.setAttribute = function (name, value) {
  if (name === "style" && value === "") this.removeAttribute(name); else setAttributeOf.call(this, name, value);
};
