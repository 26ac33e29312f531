//! Reads the modules of a package, and their imports of one another.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, Meta, Token, UseTree};

use super::file_of;

/// The path of a module below the root of its package, which is empty.
type Module = Vec<String>;

/// A module that names an item of another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Import {
    pub(super) from: Module,
    pub(super) to: Module,
}

/// The modules of a package, without those of its tests.
pub(super) struct Graph {
    pub(super) imports: Vec<Import>,
}

/// The module of one file.
#[derive(Default)]
struct Source {
    /// The names in its paths, from the root of the package or from this module.
    names: Vec<Vec<String>>,
    /// The path that `use` gives to each name in this module.
    uses: BTreeMap<String, Vec<String>>,
    children: BTreeSet<String>,
}

impl Graph {
    /// Reads a package from its root file.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let folder = root.parent().context("a folder")?;
        let mut sources = BTreeMap::new();
        read(&mut sources, root, folder, Vec::new())?;
        let mut imports = BTreeSet::new();
        for (from, source) in &sources {
            for name in &source.names {
                let to = resolve(&sources, from, name, 0);
                imports.extend(to.filter(|to| to != from).map(|to| Import {
                    from: from.clone(),
                    to,
                }));
            }
        }
        let imports = imports.into_iter().collect();
        Ok(Self { imports })
    }

    /// Returns the sets of sibling modules that import each other in a cycle, themselves or by their children.
    pub(super) fn circles(&self) -> Vec<String> {
        let mut siblings: BTreeMap<&[String], BTreeSet<(&str, &str)>> = BTreeMap::new();
        for Import { from, to } in &self.imports {
            let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
            if let (Some(one), Some(other)) = (from.get(common), to.get(common)) {
                siblings
                    .entry(&from[..common])
                    .or_default()
                    .insert((one, other));
            }
        }
        let mut circles = Vec::new();
        for (parent, edges) in siblings.iter().rev() {
            for circle in circles_of(edges) {
                let named = circle.iter().map(|name| {
                    let path = parent.iter().map(String::as_str).chain([*name]);
                    path.collect::<Vec<_>>().join("::")
                });
                circles.push(named.collect::<Vec<_>>().join(", "));
            }
        }
        circles
    }
}

/// Returns the sets of nodes that reach each other.
fn circles_of<'a>(edges: &BTreeSet<(&'a str, &'a str)>) -> BTreeSet<BTreeSet<&'a str>> {
    let reached = |start: &'a str| {
        let (mut seen, mut todo) = (BTreeSet::new(), vec![start]);
        while let Some(node) = todo.pop() {
            let next = edges.iter().filter(|(from, _)| *from == node);
            todo.extend(next.map(|(_, to)| *to).filter(|to| seen.insert(*to)));
        }
        seen
    };
    let nodes: BTreeSet<&str> = edges.iter().map(|(from, _)| *from).collect();
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        nodes.iter().map(|node| (*node, reached(node))).collect();
    let circle = |node: &&'a str| -> BTreeSet<&'a str> {
        let back = |other: &&&'a str| reach.get(**other).is_some_and(|seen| seen.contains(node));
        reach[node].iter().filter(back).copied().collect()
    };
    nodes
        .iter()
        .map(circle)
        .filter(|circle| !circle.is_empty())
        .collect()
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
    let mut reader = Reader::default();
    reader.visit_file(&parsed);
    for child in &reader.files {
        if let Some(file) = file_of(folder, child) {
            let below: PathBuf = folder.join(child);
            let path = module.iter().cloned().chain([child.clone()]).collect();
            read(sources, &file, &below, path)?;
        }
    }
    sources.insert(module, reader.source);
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
            let origin: Vec<String> = origin.iter().chain(others).cloned().collect();
            return resolve(sources, &at, &origin, depth + 1).or(rooted.then_some(at));
        } else {
            break;
        }
        rooted = true;
    }
    (rooted && sources.contains_key(&at)).then_some(at)
}

/// Collects the names in one file, without code that is only for tests.
#[derive(Default)]
struct Reader {
    source: Source,
    /// Child modules with files of their own.
    files: Vec<String>,
    /// The number of modules within the file around the present item: in them, `super` leads to this file's module.
    inner: usize,
}

impl Reader {
    fn tree(&mut self, tree: &UseTree, before: &[String]) {
        let with = |name: &syn::Ident| -> Vec<String> {
            before.iter().cloned().chain([name.to_string()]).collect()
        };
        match tree {
            UseTree::Path(path) => self.tree(&path.tree, &with(&path.ident)),
            UseTree::Group(group) => group.items.iter().for_each(|item| self.tree(item, before)),
            UseTree::Name(name) if name.ident == "self" => drop(self.push(before.to_vec())),
            UseTree::Name(name) => self.named(&name.ident.to_string(), with(&name.ident)),
            UseTree::Rename(name) => self.named(&name.rename.to_string(), with(&name.ident)),
            UseTree::Glob(_) => drop(self.push(before.to_vec())),
        }
    }

    fn named(&mut self, name: &str, path: Vec<String>) {
        let path = self.push(path);
        self.source.uses.insert(name.to_owned(), path);
    }

    /// Converts a path to its form in the file's own module.
    fn push(&mut self, mut path: Vec<String>) -> Vec<String> {
        let supers = path.iter().take_while(|name| *name == "super").count();
        path.drain(..supers.min(self.inner));
        self.source.names.push(path.clone());
        path
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        let name = module.ident.to_string();
        if module.content.is_none() {
            self.source.children.insert(name.clone());
            self.files.push(name);
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
            let names = path
                .segments
                .iter()
                .map(|segment| segment.ident.to_string());
            self.push(names.collect());
        }
        visit::visit_path(self, path);
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns true for `#[cfg(test)]`, a documentation test's attribute, or `#[cfg(all(test, ...))]`.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    let cfg = |attribute: &&Attribute| attribute.path().is_ident("cfg");
    attributes.iter().filter(cfg).any(|attribute| {
        attribute
            .parse_args::<Meta>()
            .is_ok_and(|what| names_tests(&what))
    })
}

fn names_tests(what: &Meta) -> bool {
    match what {
        Meta::Path(path) => path.is_ident("test") || path.is_ident("doctest"),
        Meta::List(list) if list.path.is_ident("all") => {
            let parts = Punctuated::<Meta, Token![,]>::parse_terminated;
            list.parse_args_with(parts)
                .is_ok_and(|parts| parts.iter().any(names_tests))
        }
        _ => false,
    }
}
