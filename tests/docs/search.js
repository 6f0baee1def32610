// Searches the index of a built site: `node search.js LUNR INDEX QUERY`, and prints where the best pages and sections are.
const [lunr, index, query] = [require(process.argv[2]), JSON.parse(require("fs").readFileSync(process.argv[3])), process.argv[4]];
const plain = (html) => (html ?? "").replace(/<[^>]+>/g, " ");
// As the theme does: titles count for much, and a result with all words of the query before one with some.
const built = lunr(function () {
  this.ref("location");
  this.field("title", { boost: 1e3 });
  this.field("text");
  for (const { location, title, text, boost } of index.docs) this.add({ location, title: plain(title), text: plain(text) }, { boost: boost ?? 1 });
});
const words = query.split(" ").length;
const scored = built.search(query).map(({ ref, score, matchData }) => [score * (Object.keys(matchData.metadata).length < words ? 1 : 2), ref]);
console.log(scored.sort(([a], [b]) => b - a).slice(0, 5).map(([, ref]) => ref).join("\n"));
