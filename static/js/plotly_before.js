// Before plotly.js: it would add a style element for maps, which the page's policy refuses and which no chart here needs.
document.head.appendChild = (node) => node.localName === "style" ? node : Node.prototype.appendChild.call(document.head, node);
