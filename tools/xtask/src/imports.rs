//! Checks that the rooms of the library import one another as ARCHITECTURE.md says, and that no package has an import
//! circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, UseTree};

use crate::setup;
use crate::stage::Stage;

/// The heading of the table that names each room and what it may import.
const HEADING: &str = "## Rooms of the library";

/// The path of a module below the root of its package, which is empty.
type Module = Vec<String>;
/// A module, and one of which it names an item.
type Imports = BTreeSet<(Module, Module)>;

/// Runs as a part of the stages `source` and `check`.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    let text = fs::read_to_string(setup::root().join("ARCHITECTURE.md"))?;
    let imports = imports(&setup::root().join("src/lib.rs"))?;
    let broken = against(&rooms(&text)?, &imports);
    stage.judge("rooms import as ARCHITECTURE.md says", broken);
    let mut packages = vec![setup::root().to_owned()];
    for folder in ["crates", "tools", "lab"] {
        for package in fs::read_dir(setup::root().join(folder))? {
            packages.push(package?.path());
        }
    }
    let mut broken = Vec::new();
    for package in packages {
        for root in ["src/lib.rs", "src/main.rs"].map(|file| package.join(file)) {
            if root.is_file() {
                let circles = circles(&self::imports(&root)?).into_iter();
                broken.extend(circles.map(|it| format!("{}: a circle: {it}", root.display())));
            }
        }
    }
    stage.judge("no package has an import circle", broken);
    Ok(())
}

/// Reads the table: its first column names a room, its last one the rooms that it may import, or `everything`.
fn rooms(text: &str) -> Result<BTreeMap<String, String>> {
    let (_, section) = text.split_once(HEADING).context(HEADING)?;
    let rows = section.lines().skip_while(|line| !line.starts_with("|---"));
    let rows = rows.skip(1).take_while(|line| line.starts_with('|'));
    let mut rooms = BTreeMap::new();
    for row in rows {
        let mut cells = row.trim_matches('|').split('|');
        let room = cells.next().and_then(|cell| cell.split('`').nth(1));
        let room = room.context("a row without a room")?;
        let room = room.trim_end_matches('/').trim_end_matches(".rs");
        rooms.insert(
            room.to_owned(),
            cells.next_back().unwrap_or_default().to_owned(),
        );
    }
    ensure!(rooms.len() > 3, "{HEADING} names {} rooms", rooms.len());
    Ok(rooms)
}

/// Returns the imports that the table does not allow.
fn against(rooms: &BTreeMap<String, String>, imports: &Imports) -> Vec<String> {
    let mut broken = Vec::new();
    for (from, to) in imports {
        let (Some(room), Some(other)) = (from.first(), to.first()) else {
            continue;
        };
        let allowed = rooms.get(room).map_or("", String::as_str);
        let is_allowed = allowed.trim() == "everything" || allowed.contains(&format!("`{other}`"));
        if room != other && !is_allowed {
            broken.push(format!(
                "src/{} imports {other}, which {room} may not",
                from.join("/")
            ));
        }
    }
    broken
}

/// Returns the siblings that import each other in a circle, themselves or by their children.
fn circles(imports: &Imports) -> Vec<String> {
    let mut siblings: BTreeMap<&[String], DiGraphMap<&str, ()>> = BTreeMap::new();
    for (from, to) in imports {
        let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
        if let (Some(one), Some(other)) = (from.get(common), to.get(common)) {
            let of_parent = siblings.entry(&from[..common]).or_default();
            of_parent.add_edge(one, other, ());
        }
    }
    let mut circles = Vec::new();
    for (parent, imports) in siblings {
        for mut names in tarjan_scc(&imports) {
            if names.len() > 1 {
                names.sort_unstable();
                circles.push(format!("{}: {}", parent.join("::"), names.join(", ")));
            }
        }
    }
    circles
}

/// Returns the imports within a package, without those of its tests, from its root file.
fn imports(root: &Path) -> Result<Imports> {
    let mut sources = BTreeMap::new();
    read(
        &mut sources,
        root,
        root.parent().context("a folder")?,
        Vec::new(),
    )?;
    let mut imports = Imports::new();
    for (from, source) in &sources {
        let named = source.names.iter();
        let found = named.filter_map(|name| resolve(&sources, from, name, 0));
        imports.extend(found.filter(|to| to != from).map(|to| (from.clone(), to)));
    }
    Ok(imports)
}

/// Reads a module and its children, whose files are in `folder`.
fn read(
    sources: &mut BTreeMap<Module, Source>,
    file: &Path,
    folder: &Path,
    module: Module,
) -> Result<()> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let parsed = syn::parse_file(&text).with_context(|| format!("parsing {}", file.display()))?;
    let mut source = Source::default();
    source.visit_file(&parsed);
    for child in &source.children {
        let files = [format!("{child}.rs"), format!("{child}/mod.rs")];
        let mut files = files.iter().map(|file| folder.join(file));
        if let Some(file) = files.find(|file| file.is_file()) {
            let path = [&module[..], std::slice::from_ref(child)].concat();
            read(sources, &file, &folder.join(child), path)?;
        }
    }
    sources.insert(module, source);
    Ok(())
}

/// Returns the module that a path from `from` leads to; `None` for another package.
fn resolve(
    sources: &BTreeMap<Module, Source>,
    from: &Module,
    path: &[String],
    depth: usize,
) -> Option<Module> {
    // Names that lead to each other never end.
    if depth > 8 {
        return None;
    }
    let mut at = from.clone();
    let mut rest = path;
    let mut rooted = false;
    while let Some((first, others)) = rest.split_first() {
        match first.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => _ = at.pop()?,
            _ => break,
        }
        rooted = true;
        rest = others;
    }
    while let Some((name, others)) = rest.split_first() {
        let source = sources.get(&at)?;
        if source.children.contains(name) {
            at.push(name.clone());
            rest = others;
        } else if let Some(origin) = source.uses.get(name).filter(|origin| origin[..] != *path) {
            let origin = [origin, others].concat();
            return resolve(sources, &at, &origin, depth + 1).or(rooted.then_some(at));
        } else {
            break;
        }
        rooted = true;
    }
    (rooted && sources.contains_key(&at)).then_some(at)
}

/// The module of one file, without code that is only for tests.
#[derive(Default)]
struct Source {
    /// The names in its paths, from the root of the package or from this module.
    names: Vec<Vec<String>>,
    /// The path that `use` gives to each name in this module.
    uses: BTreeMap<String, Vec<String>>,
    /// Child modules with files of their own.
    children: BTreeSet<String>,
    /// The number of modules within the file around the present item: in them, `super` leads to this file's module.
    inner: usize,
}

impl Source {
    fn tree(&mut self, tree: &UseTree, before: &[String]) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.tree(&path.tree, &with(&path.ident)),
            UseTree::Group(group) => group.items.iter().for_each(|item| self.tree(item, before)),
            UseTree::Name(name) if name.ident != "self" => {
                let path = self.push(with(&name.ident));
                self.uses.insert(name.ident.to_string(), path);
            }
            UseTree::Rename(name) => {
                let path = self.push(with(&name.ident));
                self.uses.insert(name.rename.to_string(), path);
            }
            UseTree::Name(_) | UseTree::Glob(_) => drop(self.push(before.to_vec())),
        }
    }

    /// Adds a path in its form in the file's own module, and returns it.
    fn push(&mut self, mut path: Vec<String>) -> Vec<String> {
        let supers = path.iter().take_while(|name| *name == "super").count();
        path.drain(..supers.min(self.inner));
        self.names.push(path.clone());
        path
    }
}

impl<'ast> Visit<'ast> for Source {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if module.content.is_none() {
            self.children.insert(module.ident.to_string());
        }
        self.inner += 1;
        visit::visit_item_mod(self, module);
        self.inner -= 1;
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.tree(&item.tree, &[]);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            let names = path.segments.iter();
            self.push(names.map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }
}

/// Returns true for `#[cfg(test)]`, a documentation test's attribute, or `#[cfg(all(test, ...))]`.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    let mut lists = attributes
        .iter()
        .filter_map(|it| it.meta.require_list().ok());
    lists.any(|list| {
        let what = list.tokens.to_string().replace(' ', "");
        let is_test = ["test", "doctest"].contains(&what.as_str()) || what.starts_with("all(test,");
        list.path.is_ident("cfg") && is_test
    })
}

#[cfg(test)]
mod tests {
    use super::{Imports, against, circles, fs, imports, rooms};

    const TABLE: &str = "## Rooms of the library\n\n| room | holds | may import |\n|---|---|---|\n\
        | `driver/` | the task | `state`, `util` |\n| `state/` | what is shown | `util` |\n\
        | `util/` | containers |  |\n| `lib.rs` | all | everything |\n\n## Next\n";

    /// Returns the imports of a package with these files.
    fn package(files: &[(&str, &str)]) -> Imports {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        imports(&folder.path().join("lib.rs")).unwrap()
    }

    #[test]
    fn an_import_against_the_table_is_named() {
        let imports = package(&[
            (
                "lib.rs",
                "mod driver;\nmod state;\nmod util;\nmod other;\npub use state::Term;",
            ),
            ("driver.rs", "use crate::state::Term;\nuse crate::util;"),
            ("state/mod.rs", "pub mod term;\npub struct Term;"),
            ("state/term.rs", "fn f() { crate::driver::run(); }"),
            (
                "util.rs",
                "use crate::Term;\n#[cfg(test)]\nmod tests { use crate::driver; }\n#[cfg(all(test, unix))]\nmod more { use crate::driver; }",
            ),
            ("other.rs", "use crate::util;"),
        ]);
        let expected = [
            "src/other imports util, which other may not",
            "src/state/term imports driver, which state may not",
            "src/util imports state, which util may not",
        ];
        assert_eq!(against(&rooms(TABLE).unwrap(), &imports), expected);
        assert!(rooms("## Rooms of the library\n\nnone\n").is_err());
    }

    #[test]
    fn a_circle_is_found_at_every_level_and_through_re_exports() {
        let imports = package(&[
            ("lib.rs", "mod a;\nmod b;\npub fn root() {}"),
            (
                "a/mod.rs",
                "mod x;\nmod y;\nmod z;\npub use x::X;\nuse crate::b::B;\nfn up() -> y::Y { y::Y }",
            ),
            ("a/x.rs", "use super::y::Y;\npub struct X;"),
            ("a/y.rs", "use super::{X, up};\npub struct Y;"),
            ("a/z.rs", "use super::x::X;\nuse crate::root;"),
            ("b.rs", "pub struct B;\nuse crate::a::X;"),
        ]);
        assert_eq!(circles(&imports), [": a, b", "a: x, y"]);
    }
}
