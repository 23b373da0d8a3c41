// Draws the diagrams in the colours of the page, and again when they change.
(() => {
  if (!window.mermaid) return;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const blocks = [...document.querySelectorAll("pre.mermaid")];
  const texts = blocks.map((each) => each.textContent);

  const draw = async () => {
    const theme = document.body.dataset.theme;
    const isDark = theme === "dark" || (theme !== "light" && dark.matches);
    mermaid.initialize({ startOnLoad: false, theme: isDark ? "dark" : "neutral" });
    blocks.forEach((each, at) => {
      each.textContent = texts[at];
      delete each.dataset.processed;
    });
    await mermaid.run({ nodes: blocks });
    document.body.dataset.diagrams = "drawn";
  };

  let last = Promise.resolve();
  const again = () => { last = last.then(draw); };
  new MutationObserver(again).observe(document.body, { attributeFilter: ["data-theme"] });
  dark.addEventListener("change", again);
  again();
})();
