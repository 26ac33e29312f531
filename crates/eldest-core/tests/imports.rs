//! Fails when modules of this crate import each other in a circle. A module and its own children may.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A module's path from the crate's root.
type Module = Vec<String>;
/// For each module, what its source imports.
type Imports = BTreeMap<Module, BTreeSet<Module>>;

/// Every module below `folder`, which is the module `parent`, with its source up to its tests.
fn sources(folder: &Path, parent: &[String], found: &mut Vec<(Module, String)>) {
    for entry in fs::read_dir(folder).expect("the crate's source") {
        let path = entry.expect("the crate's source").path();
        let name = path.file_stem().expect("a name").to_string_lossy();
        let mut module = parent.to_vec();
        if !["lib", "mod"].contains(&&*name) {
            module.push(name.into_owned());
        }
        if path.is_dir() {
            sources(&path, &module, found);
        } else {
            let text = fs::read_to_string(&path).expect("the crate's source");
            let code = text.split("#[cfg(test)]\nmod tests").next();
            found.push((module, code.unwrap_or_default().to_owned()));
        }
    }
}

/// What follows each `start` in `line`, up to the first name that begins in upper case or ends the path.
fn paths(line: &str, start: &str) -> Vec<Module> {
    let after = line.match_indices(start).filter(|(at, _)| {
        let before = line[..*at].chars().next_back();
        before.is_none_or(|c| !c.is_alphanumeric() && c != ':' && c != '_')
    });
    let path = |at: usize| {
        let names = line[at + start.len()..].split("::");
        let names = names.map(|name| {
            let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
            name[..end.unwrap_or(name.len())].to_owned()
        });
        names.take_while(|name| !name.is_empty()).collect()
    };
    after.map(|(at, _)| path(at)).collect()
}

/// What each module imports of the others; of a path, the longest part that is a module.
fn imports(sources: &[(Module, String)]) -> Imports {
    let modules: BTreeSet<&[String]> = sources.iter().map(|(module, _)| &**module).collect();
    let mut imports = Imports::new();
    for (module, code) in sources {
        let code = code.lines().filter(|line| !line.trim().starts_with("//"));
        for line in code {
            let parent = module.split_last().map_or(&[][..], |(_, parent)| parent);
            let absolute = paths(line, "crate::");
            let siblings = paths(line, "super::").into_iter();
            let siblings = siblings.map(|path| [parent.to_vec(), path].concat());
            for path in absolute.into_iter().chain(siblings) {
                let known = (0..=path.len()).rev().map(|len| &path[..len]);
                let known = known.into_iter().find(|part| modules.contains(part));
                let known = known.unwrap_or_default().to_vec();
                imports.entry(module.clone()).or_default().insert(known);
            }
        }
    }
    imports
}

/// The imports between the children of one module, whatever is below them.
fn between_children(parent: &[String], imports: &Imports) -> Imports {
    let child = |module: &Module| {
        let below = module.len() > parent.len() && module.starts_with(parent);
        below.then(|| module[..=parent.len()].to_vec())
    };
    let mut between = Imports::new();
    for (from, to) in imports {
        let Some(from) = child(from) else { continue };
        let to = to.iter().filter_map(child).filter(|to| *to != from);
        between.entry(from.clone()).or_default().extend(to);
    }
    between
}

/// The modules that are on a circle, or import one that is.
fn circle(mut imports: Imports) -> Vec<String> {
    loop {
        let ends = |to: &BTreeSet<Module>, imports: &Imports| {
            to.iter().all(|module| !imports.contains_key(module))
        };
        let done = imports.iter().find(|(_, to)| ends(to, &imports));
        let Some(done) = done.map(|(module, _)| module.clone()) else {
            return imports.keys().map(|module| module.join("::")).collect();
        };
        imports.remove(&done);
    }
}

#[test]
fn no_modules_import_each_other_in_a_circle() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    sources(&root, &[], &mut found);
    let imports = imports(&found);
    assert!(imports.len() > 10, "{imports:?}");
    for (parent, _) in &found {
        let circle = circle(between_children(parent, &imports));
        assert!(
            circle.is_empty(),
            "in `{}`: {}",
            parent.join("::"),
            circle.join(", ")
        );
    }
}
