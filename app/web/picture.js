// A picture that was made as SVG, or a small piece of HTML: text of ours, in which every value is escaped already.
// Comes in: {markup}. Links in it are followed as those of tables are.

export default function ({ parentElement, data }) {
  let root = parentElement.querySelector(".rk-picture");
  if (!root) parentElement.append((root = Object.assign(document.createElement("div"), { className: "rk rk-picture" })));
  if (root.fresh === data.markup) return;
  root.fresh = data.markup;
  root.innerHTML = data.markup;
  root.onclick = (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    navigator.clipboard.writeText(button.parentElement.querySelector("pre").textContent).then(() => {
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
  };
}
