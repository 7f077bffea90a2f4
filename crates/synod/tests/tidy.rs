//! The house rules that no compiler knows.
//!
//! A repository stays readable when small things hold everywhere: every file is reached by the build and says
//! what it is for, the machines in `crates/core` touch neither clock nor network, nothing half-done or
//! private to one machine slips in. People forget such rules one line at a time, so this test reads every
//! file and lists each line that breaks one, as `path:line: problem`.
//!
//! Every rule is a function over the path and the text of a file, or over all files where it must be. The
//! first tests apply the rules to the repository; the tests below them prove on small samples that each rule
//! bites.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;

#[test]
fn modules_have_names_of_their_own() {
    apply_to_every_file(module_file_names);
}

#[test]
fn nothing_is_left_unfinished() {
    apply_to_every_file(unfinished_code);
}

#[test]
fn every_source_file_is_part_of_its_crate() {
    report(&dead_files(&repository()));
}

#[test]
fn the_core_decides_and_does_nothing() {
    apply_to_every_file(core_purity);
}

#[test]
fn everything_is_written_in_english() {
    apply_to_every_file(foreign_letters);
}

#[test]
fn nothing_points_to_a_place_on_one_machine() {
    apply_to_every_file(machine_paths);
}

#[test]
fn source_files_can_be_read_in_one_sitting() {
    apply_to_every_file(file_length);
}

#[test]
fn every_module_says_what_it_is_for() {
    apply_to_every_file(module_documentation);
}

// ---- The rules ----

/// `foo.rs` beside `foo/`, never `foo/mod.rs`: ten tabs named alike help nobody.
fn module_file_names(path: &str, _: &str) -> Vec<String> {
    let is_nameless = path.rsplit('/').next() == Some("mod.rs");
    is_nameless.then(|| at(path, 1, "name the module's file after the module")).into_iter().collect()
}

/// No macro that stands for code still to be written, or for a look at a value while writing it.
fn unfinished_code(path: &str, text: &str) -> Vec<String> {
    if !path.ends_with(".rs") {
        return Vec::new();
    }
    lines_with(&UNFINISHED, path, (1..).zip(text.lines()))
}

/// A file that no `mod` declaration reaches is never compiled, and what it says is not true of the program.
///
/// Declarations are followed from the crate roots, `foo.rs` looking for its modules in `foo/`. Modules that
/// get their file by `#[path]`, or are declared inside an inline module, are not followed: both hide files
/// from the reader too.
fn dead_files(files: &BTreeMap<String, String>) -> Vec<String> {
    let mut reached = BTreeSet::new();
    let mut to_visit: Vec<String> = files.keys().filter(|path| is_crate_root(path)).cloned().collect();
    while let Some(path) = to_visit.pop() {
        let Some(text) = files.get(&path).filter(|_| !reached.contains(&path)) else {
            continue;
        };
        let directory = match path.rsplit_once('/') {
            Some((directory, _)) if is_crate_root(&path) => directory,
            _ => path.trim_end_matches(".rs"),
        };
        to_visit
            .extend(text.lines().filter_map(declared_module).map(|name| format!("{directory}/{name}.rs")));
        reached.insert(path);
    }
    files
        .keys()
        .filter(|path| {
            path.ends_with(".rs") && inside_crate_source(path).is_some() && !reached.contains(*path)
        })
        .map(|path| at(path, 1, "no `mod` declaration reaches this file"))
        .collect()
}

/// The machines run equally in production and in the simulator because they can reach nothing but their
/// inputs.
fn core_purity(path: &str, text: &str) -> Vec<String> {
    if !path.starts_with("crates/core/src/") || !path.ends_with(".rs") || is_test_file(path) {
        return Vec::new();
    }
    let lines: Vec<&str> = text.lines().collect();
    let production = &lines[..start_of_test_module(&lines)];
    let code =
        || (1..).zip(production.iter().copied()).filter(|(_, line)| !line.trim_start().starts_with("//"));
    let mut problems = lines_with(&IMPURE, path, code());
    problems.extend(lines_with(&[EXPECT], path, code().filter(|(_, line)| expects_a_value(line))));
    if path == CORE_ROOT {
        for required in ["#![no_std]", "#![forbid(unsafe_code)]"] {
            if !lines.contains(&required) {
                problems.push(at(path, 1, format_args!("lacks `{required}`")));
            }
        }
    }
    problems
}

/// One language for all readers. Where a test needs such letters as data, it writes them as escapes.
fn foreign_letters(path: &str, text: &str) -> Vec<String> {
    let first_letter =
        |line: &str| line.chars().find(|letter| CJK.iter().any(|range| range.contains(letter)));
    (1..)
        .zip(text.lines())
        .filter_map(|(number, line)| first_letter(line).map(|letter| (number, letter)))
        .map(|(number, letter)| at(path, number, format_args!("U+{:04X} is not English", u32::from(letter))))
        .collect()
}

/// Absolute paths of the machine on which something was written mean nothing on any other.
fn machine_paths(path: &str, text: &str) -> Vec<String> {
    lines_with(&MACHINE_PATHS, path, (1..).zip(text.lines()))
}

/// Long files hide more than one concept; tests and benchmarks, which are lists by nature, may be long.
fn file_length(path: &str, text: &str) -> Vec<String> {
    let lines = text.lines().count();
    let is_too_long = path.ends_with(".rs") && !is_test_file(path) && lines > SOURCE_LINES_MAX;
    let problem = || at(path, lines, format_args!("{lines} lines, at most {SOURCE_LINES_MAX} are allowed"));
    is_too_long.then(problem).into_iter().collect()
}

/// The first line a reader sees of a module tells what the module is for.
fn module_documentation(path: &str, text: &str) -> Vec<String> {
    let is_module = path.ends_with(".rs") && inside_crate_source(path).is_some() && !is_test_file(path);
    let is_undocumented = is_module && !text.starts_with("//!");
    is_undocumented
        .then(|| at(path, 1, "opens without a `//!` that says what it is for"))
        .into_iter()
        .collect()
}

// ---- What the rules are made of ----

fn lines_with<'a>(
    needles: &[&str],
    path: &str,
    lines: impl Iterator<Item = (usize, &'a str)>,
) -> Vec<String> {
    lines
        .flat_map(|(number, line)| {
            needles
                .iter()
                .filter(move |needle| line.contains(**needle))
                .map(move |needle| at(path, number, format_args!("`{needle}` has no place here")))
        })
        .collect()
}

/// Whether the line calls the `expect` that panics. That one takes a message and nothing else, which tells it
/// from a method of our own that expects, say, a heartbeat.
fn expects_a_value(line: &str) -> bool {
    line.split(EXPECT).skip(1).any(|arguments| {
        let mut depth = 0;
        let end_of_first = arguments.find(|character| {
            match character {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => depth -= 1,
                _ => {}
            }
            depth < 0 || (depth == 0 && character == ',')
        });
        let is_only_one = end_of_first.is_none_or(|end| arguments[end..].starts_with(')'));
        is_only_one || arguments.trim_start().starts_with('"')
    })
}

/// The rest of `crates/<name>/src/<rest>`.
fn inside_crate_source(path: &str) -> Option<&str> {
    let (_, inside_crate) = path.strip_prefix("crates/")?.split_once('/')?;
    inside_crate.strip_prefix("src/")
}

fn is_crate_root(path: &str) -> bool {
    match inside_crate_source(path).map(|inside| inside.split('/').collect::<Vec<_>>()).as_deref() {
        Some(["lib.rs" | "main.rs"]) => true,
        Some(["bin", file]) => file.ends_with(".rs"),
        Some(["bin", _, "main.rs"]) => true,
        _ => false,
    }
}

fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.split('/').any(|part| part == "tests" || part == "benches")
}

/// The index of the line that opens an inline `#[cfg(test)] mod tests {`, by custom the last item of a file,
/// or the number of lines.
fn start_of_test_module(lines: &[&str]) -> usize {
    let opens_test_module = |start: &usize| {
        let Some(same_line) = lines[*start].trim().strip_prefix("#[cfg(test)]") else {
            return false;
        };
        let mut items =
            std::iter::once(same_line).chain(lines[start + 1..].iter().copied()).map(without_attributes);
        items
            .find(|item| !item.is_empty())
            .is_some_and(|item| item.starts_with("mod ") && item.ends_with('{'))
    };
    (0..lines.len()).find(opens_test_module).unwrap_or(lines.len())
}

/// The name in `mod name;`, with whatever attributes and visibility stand before it on its line.
fn declared_module(line: &str) -> Option<&str> {
    let (name, _) = without_visibility(without_attributes(line)).strip_prefix("mod ")?.split_once(';')?;
    name.chars().all(|character| character.is_alphanumeric() || character == '_').then_some(name)
}

fn without_attributes(line: &str) -> &str {
    let mut item = line.trim();
    while let Some((_, rest)) = item.strip_prefix("#[").and_then(|attribute| attribute.split_once(']')) {
        item = rest.trim_start();
    }
    item
}

fn without_visibility(item: &str) -> &str {
    let Some(rest) = item.strip_prefix("pub") else {
        return item;
    };
    match rest.strip_prefix('(').and_then(|scope| scope.split_once(')')) {
        Some((_, rest)) => rest.trim_start(),
        None => rest.trim_start(),
    }
}

// ---- The repository, and how problems are reported ----

fn apply_to_every_file(rule: fn(&str, &str) -> Vec<String>) {
    report(&repository().iter().flat_map(|(path, text)| rule(path, text)).collect::<Vec<_>>());
}

/// All text files by their path from the root of the repository.
fn repository() -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    collect_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), "", &mut files);
    // A walk that lost its way would find no problems either.
    assert!(files.contains_key(CORE_ROOT), "{CORE_ROOT} was not found");
    files
}

fn collect_files(directory: &Path, prefix: &str, files: &mut BTreeMap<String, String>) {
    let entries =
        fs::read_dir(directory).unwrap_or_else(|error| panic!("reading {}: {error}", directory.display()));
    for entry in entries {
        let entry = entry.unwrap_or_else(|error| panic!("reading {}: {error}", directory.display()));
        let name = entry.file_name().to_string_lossy().into_owned();
        if NOT_SOURCE.contains(&name.as_str()) {
            continue;
        }
        let path = format!("{prefix}{name}");
        // Links are not followed: what they point to is either visited anyway or not ours.
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => collect_files(&entry.path(), &format!("{path}/"), files),
            // What is not UTF-8 is an image or other data, on which no rule here has a say.
            Ok(kind) if kind.is_file() => {
                files.extend(fs::read_to_string(entry.path()).ok().map(|text| (path, text)));
            }
            _ => {}
        }
    }
}

fn at(path: &str, line: usize, problem: impl fmt::Display) -> String {
    format!("{path}:{line}: {problem}")
}

fn report(problems: &[String]) {
    assert!(problems.is_empty(), "{} problem(s):\n{}", problems.len(), problems.join("\n"));
}

const CORE_ROOT: &str = "crates/core/src/lib.rs";
const SOURCE_LINES_MAX: usize = 700;

/// What version control ignores, and its own records.
const NOT_SOURCE: [&str; 3] = [".git", "target", "synod-data"];

// The needles are put together from halves, or this very file would contain them.
const UNFINISHED: [&str; 3] = [concat!("to", "do!("), concat!("unimple", "mented!("), concat!("db", "g!(")];
const MACHINE_PATHS: [&str; 3] = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/fa", "rm/")];

const IMPURE: [&str; 8] = [
    "std::",
    "Instant::now",
    "SystemTime",
    "thread_rng",
    "tokio",
    "println!",
    // Its order of iteration differs from run to run.
    "HashMap",
    // Machines live on input from the network; what cannot fail is asserted, what can is returned.
    ".unwrap()",
];
const EXPECT: &str = ".expect(";

const CJK: [std::ops::RangeInclusive<char>; 8] = [
    '\u{1100}'..='\u{11ff}',   // Hangul letters
    '\u{2e80}'..='\u{2fdf}',   // radicals
    '\u{3000}'..='\u{33ff}',   // punctuation, kana, bopomofo, enclosed forms
    '\u{3400}'..='\u{9fff}',   // ideographs
    '\u{ac00}'..='\u{d7ff}',   // Hangul syllables
    '\u{f900}'..='\u{faff}',   // compatibility ideographs
    '\u{ff00}'..='\u{ffef}',   // half and full width forms
    '\u{20000}'..='\u{3ffff}', // further ideographs
];

// ---- The rules bite ----

#[test]
fn a_nameless_module_file_is_reported() {
    assert_eq!(module_file_names("crates/a/src/b/mod.rs", "").len(), 1);
    assert_eq!(module_file_names("crates/a/src/b/mod_rs.rs", ""), NOTHING);
    assert_eq!(module_file_names("crates/a/src/model.rs", ""), NOTHING);
}

#[test]
fn unfinished_code_is_reported() {
    for needle in UNFINISHED {
        let text = format!("fn main() {{\n    {needle}\"x\");\n}}\n");
        assert_eq!(
            unfinished_code("crates/a/src/lib.rs", &text),
            [format!("crates/a/src/lib.rs:2: `{needle}` has no place here")]
        );
        assert_eq!(unfinished_code("docs/a.md", &text), NOTHING);
    }
}

#[test]
fn a_dead_file_is_reported() {
    let dead =
        |files: &[(&str, &str)]| dead_files(&files.iter().map(|(p, t)| ((*p).into(), (*t).into())).collect());

    // Every form of declaration, from every kind of root, is followed through any number of files.
    assert_eq!(
        dead(&[
            ("crates/a/src/lib.rs", "//! Words.\n\nmod one;\npub mod two;\npub(crate) mod three; // why\n"),
            ("crates/a/src/one.rs", "#[cfg(test)]\nmod tests;\n"),
            ("crates/a/src/one/tests.rs", ""),
            ("crates/a/src/two.rs", "pub(in crate::two) mod deep;\nmod inline {\n}\n"),
            ("crates/a/src/two/deep.rs", "#[cfg(test)] mod tests;"),
            ("crates/a/src/two/deep/tests.rs", ""),
            ("crates/a/src/three.rs", ""),
            ("crates/a/src/main.rs", "mod arguments;"),
            ("crates/a/src/arguments.rs", ""),
            ("crates/a/src/bin/tool.rs", ""),
            ("crates/a/src/bin/other/main.rs", "mod part;"),
            ("crates/a/src/bin/other/part.rs", ""),
            ("crates/a/tests/outside.rs", ""),
            ("crates/a/build.rs", ""),
            ("crates/a/src/notes.md", ""),
        ]),
        NOTHING
    );

    // A root that declares itself is the compiler's to refuse; here it only must not be followed for ever.
    assert_eq!(dead(&[("crates/a/src/lib.rs", "mod lib;")]), NOTHING);

    // A file nobody declares, one declared in a comment only, and one declared by a sibling instead of its
    // parent.
    assert_eq!(
        dead(&[
            ("crates/a/src/lib.rs", "// mod commented;\nmod one;\n"),
            ("crates/a/src/one.rs", "mod two;\n"),
            ("crates/a/src/two.rs", ""),
            ("crates/a/src/commented.rs", ""),
            ("crates/a/src/forgotten.rs", "mod child;\n"),
            ("crates/a/src/forgotten/child.rs", ""),
        ]),
        ["commented", "forgotten", "forgotten/child", "two"]
            .map(|file| format!("crates/a/src/{file}.rs:1: no `mod` declaration reaches this file"))
    );
}

#[test]
fn impure_core_code_is_reported() {
    for needle in IMPURE {
        let text = format!(
            "//! Words about {needle}.\n\nfn f() {{\n    // Words about {needle}.\n    {needle}\n}}\n"
        );
        assert_eq!(
            core_purity("crates/core/src/a.rs", &text),
            [format!("crates/core/src/a.rs:5: `{needle}` has no place here")]
        );
        assert_eq!(core_purity("crates/core/src/a/tests.rs", &text), NOTHING);
        assert_eq!(core_purity("crates/cluster/src/a.rs", &text), NOTHING);
    }
}

#[test]
fn panicking_expectations_in_the_core_are_reported() {
    for panics in [
        "a.expect(\"one, two\")",
        "a.expect(MESSAGE)",
        "a.expect(&format!(\"{b}\", c))",
        "a.expect(",
        "a.expect(f(b, c)) ",
    ] {
        assert_eq!(core_purity("crates/core/src/a.rs", panics).len(), 1, "{panics}");
    }
    assert_eq!(core_purity("crates/core/src/a.rs", "self.detector.expect(&node, now);"), NOTHING);
}

#[test]
fn core_tests_may_do_what_the_core_may_not() {
    let inline = "fn f() {}\n\n#[cfg(test)]\n#[allow(missing_docs)]\nmod tests {\n    use std::fmt;\n}\n";
    assert_eq!(core_purity("crates/core/src/a.rs", inline), NOTHING);
    let one_line = "fn f() {}\n\n#[cfg(test)] mod tests {\n    use std::fmt;\n}\n";
    assert_eq!(core_purity("crates/core/src/a.rs", one_line), NOTHING);

    // A declaration of a test module elsewhere exempts nothing that follows it, nor does any other test-only
    // item.
    let declared = "#[cfg(test)]\nmod tests;\n\nuse std::fmt;\n";
    assert_eq!(core_purity("crates/core/src/a.rs", declared).len(), 1);
    let import = "#[cfg(test)]\nuse alloc::vec;\n\nmod inner {\n    use std::fmt;\n}\n";
    assert_eq!(core_purity("crates/core/src/a.rs", import).len(), 1);
}

#[test]
fn a_core_that_is_not_locked_down_is_reported() {
    assert_eq!(core_purity(CORE_ROOT, "//! Words.\n\n#![no_std]\n#![forbid(unsafe_code)]\n"), NOTHING);
    assert_eq!(
        core_purity(CORE_ROOT, "//! Words.\n\n// #![no_std]\n"),
        [
            "crates/core/src/lib.rs:1: lacks `#![no_std]`",
            "crates/core/src/lib.rs:1: lacks `#![forbid(unsafe_code)]`"
        ]
    );
}

#[test]
fn foreign_letters_are_reported() {
    for letter in ['\u{65e5}', '\u{3042}', '\u{30a2}', '\u{ac00}', '\u{3002}', '\u{ff08}', '\u{20000}'] {
        let text = format!("plain\nsome {letter}{letter} here\n");
        assert_eq!(
            foreign_letters("docs/a.md", &text),
            [format!("docs/a.md:2: U+{:04X} is not English", u32::from(letter))]
        );
    }
    assert_eq!(
        foreign_letters("docs/a.md", "caf\u{e9} \u{2014} 5 \u{b5}s \u{2264} \u{3c6} \u{2192} \u{25cf}"),
        NOTHING
    );
}

#[test]
fn machine_paths_are_reported() {
    for needle in MACHINE_PATHS {
        let text = format!("a\nb\nsee {needle}notes\n");
        assert_eq!(machine_paths("Makefile", &text), [format!("Makefile:3: `{needle}` has no place here")]);
    }
    assert_eq!(machine_paths("Makefile", "network/ and ./root and /etc/"), NOTHING);
}

#[test]
fn overlong_files_are_reported() {
    let longest = "x\n".repeat(SOURCE_LINES_MAX);
    let too_long = longest.clone() + "x\n";
    assert_eq!(file_length("crates/a/src/b.rs", &longest), NOTHING);
    assert_eq!(
        file_length("crates/a/src/b.rs", &too_long),
        ["crates/a/src/b.rs:701: 701 lines, at most 700 are allowed"]
    );
    for exempt in ["crates/a/tests/b.rs", "crates/a/benches/b.rs", "crates/a/src/b/tests.rs", "docs/b.md"] {
        assert_eq!(file_length(exempt, &too_long), NOTHING);
    }
}

#[test]
fn undocumented_modules_are_reported() {
    assert_eq!(module_documentation("crates/a/src/b.rs", "//! Words.\n"), NOTHING);
    for text in ["", "use a::b;\n//! Words.\n", "// Words.\n", "\n//! Words.\n"] {
        assert_eq!(
            module_documentation("crates/a/src/b.rs", text),
            ["crates/a/src/b.rs:1: opens without a `//!` that says what it is for"]
        );
    }
    for exempt in ["crates/a/src/b/tests.rs", "crates/a/tests/b.rs", "crates/a/build.rs"] {
        assert_eq!(module_documentation(exempt, ""), NOTHING);
    }
}

const NOTHING: [&str; 0] = [];
