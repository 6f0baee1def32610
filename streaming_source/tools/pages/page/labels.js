// Names of splits where there is little room: cut at most once, and each told apart from all others.
const WORD = /[\p{L}\p{N}]/u;
/** How many characters all of some names begin with; up to the end of a word. */
function commonStart(names) {
  const [first] = names;
  let count = names.length > 1 ? first.length : 0;
  for (const name of names) for (let i = 0; i < count; i++) if (name[i] !== first[i]) count = i;
  while (count && WORD.test(first[count - 1])) count--;
  return count;
}

/** Labels of names, each by its name, of at most so many characters. Of names that are not told apart by these, the whole. */
function labelsOf(ids, most) {
  const names = new Map(ids.map((id) => [id, [...id]])), labels = new Map(ids.map((id) => [id, ""]));
  const alike = () => {
    const groups = new Map();
    for (const [id, label] of labels) groups.set(label, [...(groups.get(label) ?? []), id]);
    return [...groups.values()].filter((group) => group.length > 1 || labels.get(group[0]) === "");
  };
  // What all have in common goes first. Those that look alike then have more in common than all have.
  for (let round = 0; round < 2; round++)
    for (const group of alike()) {
      const all = group.map((id) => names.get(id)), start = commonStart(all), end = commonStart(all.map((name) => [...name].reverse()));
      for (const id of group) labels.set(id, cut(names.get(id), start, end, most));
    }
  for (const group of alike()) for (const id of group) labels.set(id, id);
  return labels;
}

/** A name of at most so many characters: without what it has in common at both ends, or else without its middle. */
function cut(name, start, end, most) {
  const text = (from, to) => name.slice(from, to).join(""), own = name.length - end;
  if (name.length <= most) return text(0);
  if (own < most) return `${text(0, most - 1)}…`;
  const room = most - (own - start) - (end ? 2 : 1);
  if (room >= 0) return `…${text(Math.max(start - room, 0), own)}${end ? "…" : ""}`;
  const first = Math.floor((most - 1) / 3);
  return `${text(start, start + first)}…${text(own - (most - 1 - first), own)}`;
}
