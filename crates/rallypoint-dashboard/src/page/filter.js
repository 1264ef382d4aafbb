// What is looked for among the nodes. The grid and the table find the same.

/**
 * A function that says how a node is found: "rank", "words", or not at all. A number is looked for in the names and as a
 * rank, and who looks is told which it was.
 */
export function finder(text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return () => "words";
  const [, only, digits] = /^(rank )?(\d+)$/.exec(wanted) ?? [];
  if (digits) {
    return (node) => {
      if (!only && `${node.node} ${node.host}`.toLowerCase().includes(digits)) return "words";
      return node.rank === Number(digits) ? "rank" : "";
    };
  }
  return (node, label) => (`${label}, ${node.state}, host ${node.host}, ${node.address}`.toLowerCase().includes(wanted) ? "words" : "");
}

/** What is said of so many that were found. */
export function found({ words, rank }, text) {
  const all = words + rank;
  if (!text.trim()) return "";
  if (!all) return "no match";
  const count = `${all} ${all === 1 ? "match" : "matches"}`;
  if (!rank) return count;
  return words ? `${count}: ${words} by name, ${rank} by rank` : `${count}, by rank`;
}
