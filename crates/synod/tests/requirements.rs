//! Keeps `docs/requirements.md` true.
//!
//! The page promises, row by row, that a criterion of a design lives in a module and is shown by a test.
//! Promises like that rot silently: a test is renamed, a row is forgotten, a plan is taken for a fact. So the
//! page is read here as data and compared with what the designs ask for and with the sources it names.
//!
//! Every rule is a function from the document, and a view of the repository, to a list of problems. The first
//! tests apply the rules to the real page; the tests below them spoil a perfect page in one place at a time
//! and prove that exactly that place is reported.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::path::Path;

#[test]
fn every_row_parses_under_a_known_design() {
    report(&check_rows(&Document::parse(&requirements_page())));
}

#[test]
fn ids_are_unique_and_ascend() {
    report(&check_order(&Document::parse(&requirements_page())));
}

#[test]
fn every_criterion_has_a_row() {
    report(&check_completeness(&Document::parse(&requirements_page())));
}

#[test]
fn finished_designs_name_modules_and_tests_that_exist() {
    report(&check_finished(&Document::parse(&requirements_page()), &read_from_repository));
}

#[test]
fn planned_designs_claim_no_test() {
    report(&check_planned(&Document::parse(&requirements_page())));
}

/// All rules at once; what the tests at the bottom of this file hold against their spoiled pages.
fn check(document: &str, repository: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let document = Document::parse(document);
    let mut problems = check_rows(&document);
    problems.extend(check_order(&document));
    problems.extend(check_completeness(&document));
    problems.extend(check_finished(&document, repository));
    problems.extend(check_planned(&document));
    problems
}

// ---- The rules ----

/// The page has its shape: sections with a status, tables with a header, rows with four filled cells.
fn check_rows(document: &Document) -> Vec<String> {
    document.malformed.clone()
}

/// Ids are unique, and inside a section a reader finds them in ascending order.
fn check_order(document: &Document) -> Vec<String> {
    let mut problems = Vec::new();
    for section in &document.sections {
        let mut seen = BTreeSet::new();
        let mut highest: Option<&Row> = None;
        for row in &section.rows {
            if !seen.insert(row.position) {
                problems.push(at(row.line, format_args!("the id {} is used twice", row.id)));
            } else if let Some(above) = highest.filter(|above| above.position > row.position) {
                problems.push(at(row.line, format_args!("{} stands below {}", row.id, above.id)));
            } else {
                highest = Some(row);
            }
        }
    }
    problems
}

/// Nothing a design asks for is missing, nothing it does not know is listed, and our own numberings have no
/// gaps.
fn check_completeness(document: &Document) -> Vec<String> {
    let mut problems = Vec::new();
    for design in &DESIGNS {
        let Some(section) = document.sections.iter().find(|section| section.design.number == design.number)
        else {
            problems.push(format!("{PAGE}: design {} has no section", design.number));
            continue;
        };
        let present: BTreeSet<Position> = section.rows.iter().map(|row| row.position).collect();
        let expected = design.expected(&present);
        for position in expected.difference(&present) {
            problems.push(at(section.line, format_args!("{} has no row", design.id(*position))));
        }
        for row in section.rows.iter().filter(|row| !expected.contains(&row.position)) {
            problems.push(at(row.line, format_args!("{} is no criterion of the design", row.id)));
        }
    }
    problems
}

/// In a finished design every row points to a module and to tests, and all of them are really there. Of a design that is
/// begun, the rows that name tests are held to the same.
fn check_finished(document: &Document, repository: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let mut problems = Vec::new();
    let begun = document.rows_with(Status::Begun).filter(|row| row.shown_by != NOT_SHOWN);
    for row in document.rows_with(Status::Finished).chain(begun) {
        for module in row.module.split("<br>") {
            match code_span(module) {
                Some(path) if path.ends_with(".rs") && is_inside_repository(path) => {
                    if repository(path).is_none() {
                        problems.push(at(row.line, format_args!("{}: module {path} does not exist", row.id)));
                    }
                }
                _ => problems.push(at(
                    row.line,
                    format_args!("{}: {} is not a `path/to/module.rs`", row.id, module.trim()),
                )),
            }
        }
        for reference in row.shown_by.split("<br>") {
            if let Err(problem) = check_reference(reference.trim(), repository) {
                problems.push(at(row.line, format_args!("{}: {problem}", row.id)));
            }
        }
    }
    problems
}

/// In a planned design no row pretends to be shown by anything.
fn check_planned(document: &Document) -> Vec<String> {
    document
        .rows_with(Status::Planned)
        .filter(|row| row.shown_by != NOT_SHOWN)
        .map(|row| {
            at(row.line, format_args!("{}: planned, yet claims to be shown by {}", row.id, row.shown_by))
        })
        .collect()
}

/// What shows a criterion is a test, or for a speed the script of a benchmark: tests assert no times.
fn check_reference(reference: &str, repository: &dyn Fn(&str) -> Option<String>) -> Result<(), String> {
    if let Some(script) = code_span(reference).filter(|path| is_benchmark(path)) {
        return match repository(script) {
            Some(text) if text.starts_with("#!") => Ok(()),
            Some(_) => Err(format!("{script} cannot be run")),
            None => Err(format!("benchmark {script} does not exist")),
        };
    }
    let Some((path, test)) = code_span(reference).and_then(split_reference) else {
        return Err(format!("{reference} is not a `path/to/file.rs::test_name`"));
    };
    let Some(source) = repository(path) else {
        return Err(format!("file {path} does not exist"));
    };
    let functions = functions_named(&source, test);
    // A name may occur once per module of a file; one real test among them is what the row means.
    match functions.iter().map(Function::defect).min() {
        None => Err(format!("{path} has no function {test}")),
        Some(Some(defect)) => Err(format!("{path}::{test} {defect}")),
        Some(None) => Ok(()),
    }
}

// ---- The page as data ----

/// What one design asks for and how its criteria are numbered.
struct Design {
    number: &'static str,
    /// The letter that opens all its ids.
    letter: &'static str,
    numbering: Numbering,
}

enum Numbering {
    /// Numbered by the design itself as `<prefix>group.number`; the slice holds the number of criteria per
    /// group.
    Given { prefix: &'static str, criteria_per_group: &'static [u32] },
    /// Numbered by the page as `group.number`, without gaps.
    OwnGroups,
    /// Numbered by the page as one row of numbers, without gaps.
    OwnNumbers,
}

/// Where a row stands in its section. The order of the variants is the order of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Position {
    Criterion { group: u32, number: u32 },
    DesignRule { number: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Finished,
    /// Some of its rows are shown by tests, the others are planned.
    Begun,
    Planned,
}

struct Document {
    sections: Vec<Section>,
    malformed: Vec<String>,
}

struct Section {
    line: usize,
    design: &'static Design,
    status: Option<Status>,
    rows: Vec<Row>,
}

struct Row {
    line: usize,
    id: String,
    position: Position,
    module: String,
    shown_by: String,
}

impl Document {
    /// Reads as much as can be understood; the rest is listed in `malformed`.
    fn parse(text: &str) -> Self {
        let mut document = Self { sections: Vec::new(), malformed: Vec::new() };
        let mut in_section = false;
        let mut awaits_status = false;
        let mut table_line = 0;
        for (line, content) in (1..).zip(text.lines()) {
            let is_table = content.starts_with('|');
            table_line = if is_table { table_line + 1 } else { 0 };
            if awaits_status && !content.trim().is_empty() {
                awaits_status = false;
                document.take_status(line, content);
                if Status::parse(content).is_some() {
                    continue;
                }
            }
            if let Some(heading) = content.strip_prefix("## ") {
                in_section = document.open_section(line, heading);
                awaits_status = in_section;
            } else if Status::parse(content).is_some() {
                document.malformed.push(at(line, "a status stands directly under the heading of a design"));
            } else if is_table {
                match (table_line, in_section) {
                    (_, false) => document.malformed.push(at(line, "a table stands outside of the designs")),
                    (1, true) if content == TABLE_HEADER => {}
                    (1, true) => {
                        document.malformed.push(at(line, format_args!("a table opens with {TABLE_HEADER}")));
                    }
                    (2, true) if content == TABLE_RULE => {}
                    (2, true) => {
                        document
                            .malformed
                            .push(at(line, format_args!("the header is followed by {TABLE_RULE}")));
                    }
                    (_, true) => document.take_row(line, content),
                }
            }
        }
        document
    }

    fn rows_with(&self, status: Status) -> impl Iterator<Item = &Row> {
        self.sections
            .iter()
            .filter(move |section| section.status == Some(status))
            .flat_map(|section| &section.rows)
    }

    /// Opens the section of a design and says whether the heading is one.
    fn open_section(&mut self, line: usize, heading: &str) -> bool {
        let Some(title) = heading.strip_prefix("Design ") else {
            return false;
        };
        let number = title.split(' ').next().unwrap_or_default();
        let Some(design) = DESIGNS.iter().find(|design| design.number == number) else {
            self.malformed.push(at(line, format_args!("there is no design {number}")));
            return false;
        };
        if self.sections.iter().any(|section| section.design.number == number) {
            self.malformed.push(at(line, format_args!("design {number} has a second section")));
            return false;
        }
        self.sections.push(Section { line, design, status: None, rows: Vec::new() });
        true
    }

    fn take_status(&mut self, line: usize, content: &str) {
        let status = Status::parse(content);
        if status.is_none() {
            self.malformed.push(at(
                line,
                "the heading of a design is followed by `Status: finished`, `Status: begun` or `Status: planned`",
            ));
        }
        if let Some(section) = self.sections.last_mut() {
            section.status = status;
        }
    }

    fn take_row(&mut self, line: usize, content: &str) {
        let Some(section) = self.sections.last_mut() else {
            return;
        };
        match Row::parse(line, content, section.design) {
            Ok(row) => section.rows.push(row),
            Err(problem) => self.malformed.push(at(line, problem)),
        }
    }
}

impl Row {
    fn parse(line: usize, content: &str, design: &Design) -> Result<Self, String> {
        let cells = cells(content).ok_or("a row ends with `|`")?;
        let [id, criterion, module, shown_by] = cells.as_slice() else {
            return Err(format!("a row has 4 cells, this one has {}", cells.len()));
        };
        if [id, criterion, module, shown_by].iter().any(|cell| cell.is_empty()) {
            return Err(format!("row {id} has an empty cell"));
        }
        let Some(position) = design.position(id) else {
            return Err(format!("{id} is not an id of design {}", design.number));
        };
        Ok(Self { line, id: id.clone(), position, module: module.clone(), shown_by: shown_by.clone() })
    }
}

impl Status {
    fn parse(line: &str) -> Option<Self> {
        match line {
            "Status: finished" => Some(Self::Finished),
            "Status: begun" => Some(Self::Begun),
            "Status: planned" => Some(Self::Planned),
            _ => None,
        }
    }
}

impl Design {
    fn position(&self, id: &str) -> Option<Position> {
        let rest = id.strip_prefix(self.letter)?.strip_prefix('-')?;
        let position = if let Some(number) = rest.strip_prefix('D') {
            Position::DesignRule { number: number.parse().ok()? }
        } else {
            let (group, number) = match self.numbering {
                Numbering::Given { prefix, .. } => rest.strip_prefix(prefix)?.split_once('.')?,
                Numbering::OwnGroups => rest.split_once('.')?,
                Numbering::OwnNumbers => ("1", rest),
            };
            Position::Criterion { group: group.parse().ok()?, number: number.parse().ok()? }
        };
        // One spelling per id: `M-01.1` and `M-+1.1` parse as numbers but are not written that way.
        (self.id(position) == id).then_some(position)
    }

    fn id(&self, position: Position) -> String {
        let letter = self.letter;
        match (position, &self.numbering) {
            (Position::DesignRule { number }, _) => format!("{letter}-D{number}"),
            (Position::Criterion { group, number }, Numbering::Given { prefix, .. }) => {
                format!("{letter}-{prefix}{group}.{number}")
            }
            (Position::Criterion { group, number }, Numbering::OwnGroups) => {
                format!("{letter}-{group}.{number}")
            }
            (Position::Criterion { number, .. }, Numbering::OwnNumbers) => format!("{letter}-{number}"),
        }
    }

    /// The ids this design must have, given the highest ones that are there where the numbering is our own.
    fn expected(&self, present: &BTreeSet<Position>) -> BTreeSet<Position> {
        let highest_rule = present.iter().map(|position| match position {
            Position::DesignRule { number } => *number,
            Position::Criterion { .. } => 0,
        });
        let mut expected: BTreeSet<Position> =
            (1..=highest_rule.max().unwrap_or(0)).map(|number| Position::DesignRule { number }).collect();

        let criteria_per_group = match self.numbering {
            Numbering::Given { criteria_per_group, .. } => criteria_per_group.to_vec(),
            Numbering::OwnGroups | Numbering::OwnNumbers => highest_numbers(present),
        };
        for (group, criteria) in (1..).zip(criteria_per_group) {
            expected.extend((1..=criteria).map(|number| Position::Criterion { group, number }));
        }
        expected
    }
}

/// The highest number of each group from 1 to the last; an absent group counts as 1, so that it is reported
/// missing.
fn highest_numbers(present: &BTreeSet<Position>) -> Vec<u32> {
    let criteria = || {
        present.iter().filter_map(|position| match position {
            Position::Criterion { group, number } => Some((*group, *number)),
            Position::DesignRule { .. } => None,
        })
    };
    let last_group = criteria().map(|(group, _)| group).max().unwrap_or(1);
    (1..=last_group)
        .map(|group| criteria().filter(|(of, _)| *of == group).map(|(_, number)| number).max().unwrap_or(1))
        .collect()
}

/// The trimmed cells of `| a | b |`; a pipe inside a cell is written `\|`. `None` without the closing pipe.
fn cells(row: &str) -> Option<Vec<String>> {
    let inner = row.trim_end().strip_prefix('|')?.strip_suffix('|')?;
    let mut cells = vec![String::new()];
    let mut escaped = false;
    for character in inner.chars() {
        if character == '|' && !escaped {
            cells.push(String::new());
        } else if let Some(cell) = cells.last_mut() {
            cell.push(character);
        }
        escaped = character == '\\' && !escaped;
    }
    Some(cells.iter().map(|cell| cell.trim().to_owned()).collect())
}

/// The text between the backticks when the cell is exactly one code span.
fn code_span(cell: &str) -> Option<&str> {
    let text = cell.trim().strip_prefix('`')?.strip_suffix('`')?;
    (!text.is_empty() && !text.contains('`')).then_some(text)
}

fn split_reference(reference: &str) -> Option<(&str, &str)> {
    let (path, test) = reference.split_once("::")?;
    let is_name = !test.is_empty() && test.chars().all(is_identifier);
    (path.ends_with(".rs") && is_inside_repository(path) && is_name).then_some((path, test))
}

fn is_benchmark(path: &str) -> bool {
    path.starts_with("bench/") && is_inside_repository(path)
}

fn is_inside_repository(path: &str) -> bool {
    path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

// ---- Tests in Rust sources ----

/// A function as far as it matters here. Functions inside `proptest! { … }` need no case of their own: they
/// carry the same `#[test]`, and only their parameters look different.
struct Function {
    attributes: Vec<String>,
    has_body: bool,
}

impl Function {
    /// What keeps this function from showing anything; `None`, the least, when nothing does.
    fn defect(&self) -> Option<&'static str> {
        let has = |accepts: &dyn Fn(&str) -> bool| self.attributes.iter().any(|attribute| accepts(attribute));
        if !has(&|attribute| attribute == "#[test]" || attribute.starts_with("#[tokio::test")) {
            Some("is not a test")
        } else if has(&|attribute| attribute.starts_with("#[ignore")) {
            Some("is ignored and shows nothing")
        } else if !self.has_body {
            Some("is empty")
        } else {
            None
        }
    }
}

fn functions_named(source: &str, name: &str) -> Vec<Function> {
    let code = blank_comments_and_literals(source);
    let mut functions = Vec::new();
    for (start, _) in code.match_indices("fn ") {
        let after = code[start + 3..].trim_start();
        let is_keyword = !code[..start].ends_with(is_identifier);
        let Some(signature) = after.strip_prefix(name).filter(|rest| !rest.starts_with(is_identifier)) else {
            continue;
        };
        if is_keyword {
            functions.push(Function {
                attributes: attributes_before(&code[..start]),
                has_body: has_body(signature),
            });
        }
    }
    functions
}

/// The attributes directly in front of an item, without white space.
fn attributes_before(code: &str) -> Vec<String> {
    let mut attributes = Vec::new();
    let mut rest = code.trim_end();
    while let Some(shorter) = QUALIFIERS.iter().find_map(|qualifier| rest.strip_suffix(qualifier)) {
        rest = shorter.trim_end();
    }
    while rest.ends_with(']') {
        let Some(open) = opening_bracket(rest) else {
            break;
        };
        let Some(before) = rest[..open].strip_suffix('#') else {
            break;
        };
        attributes.push(rest[before.len()..].split_whitespace().collect());
        rest = before.trim_end();
    }
    attributes
}

/// Where the bracket opens that the last character closes.
fn opening_bracket(code: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, character) in code.char_indices().rev() {
        match character {
            ']' => depth += 1,
            '[' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// Whether the braces after a function's signature hold anything. The signature is what follows the name:
/// parameters (which may hold braces of their own, in a strategy for instance) and perhaps a return type.
fn has_body(signature: &str) -> bool {
    let body = inside('(', ')', signature).and_then(|parameters| {
        inside('{', '}', &signature[parameters.end..]).map(|body| (parameters.end, body))
    });
    match body {
        Some((offset, body)) => !signature[offset..][body].trim().is_empty(),
        None => false,
    }
}

/// The range between the first `open` and the `close` that belongs to it.
fn inside(open: char, close: char, code: &str) -> Option<Range<usize>> {
    let start = code.find(open)?;
    let mut depth = 0;
    for (at, character) in code[start..].char_indices() {
        if character == open {
            depth += 1;
        } else if character == close {
            depth -= 1;
        }
        if depth == 0 {
            return Some(start + open.len_utf8()..start + at);
        }
    }
    None
}

/// The source with comments and the insides of literals replaced by spaces, so that a test that is only
/// commented out, or quoted, is not taken for one and braces in strings do not count.
fn blank_comments_and_literals(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let after_identifier = code.ends_with(is_identifier);
        let comment = comment_length(rest);
        let literal = if after_identifier { quoted_length(rest) } else { literal_length(rest) };
        if comment > 0 {
            code.extend(rest[..comment].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[comment..];
        } else if literal > 0 {
            // The quotes stay: a body that consists of a literal is not empty.
            code.extend(
                rest[..literal].chars().map(|c| if matches!(c, '\n' | '"' | '\'') { c } else { ' ' }),
            );
            rest = &rest[literal..];
        } else {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    code
}

/// The length of the comment that `code` starts with, or 0.
fn comment_length(code: &str) -> usize {
    if code.starts_with("//") {
        return code.find('\n').unwrap_or(code.len());
    }
    if !code.starts_with("/*") {
        return 0;
    }
    // Block comments nest.
    let mut depth = 0;
    let mut at = 0;
    while at < code.len() {
        let rest = &code[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
        if depth == 0 {
            return at;
        }
    }
    code.len()
}

/// The length of the string or character that `code` starts with, prefixes such as `r#` or `b` included, or
/// 0.
fn literal_length(code: &str) -> usize {
    let unprefixed = code.trim_start_matches(['b', 'c']);
    let prefix = code.len() - unprefixed.len();
    if let Some(raw) = unprefixed.strip_prefix('r') {
        let opening = raw.trim_start_matches('#');
        let hashes = raw.len() - opening.len();
        if opening.starts_with('"') {
            let close = format!("\"{}", "#".repeat(hashes));
            let body = prefix + 1 + hashes + 1;
            return code[body..].find(&close).map_or(code.len(), |at| body + at + close.len());
        }
    }
    match quoted_length(unprefixed) {
        0 => 0,
        length => prefix + length,
    }
}

/// The length of the plain `"string"` or `'c'` that `code` starts with, or 0. A lifetime is neither.
fn quoted_length(code: &str) -> usize {
    let mut characters = code.char_indices();
    let Some((_, quote @ ('"' | '\''))) = characters.next() else {
        return 0;
    };
    if quote == '\'' {
        let mut ahead = characters.clone().map(|(_, character)| character);
        let (first, second) = (ahead.next(), ahead.next());
        if first != Some('\\') && second != Some('\'') {
            return 0;
        }
    }
    let mut escaped = false;
    for (at, character) in characters {
        if character == quote && !escaped {
            return at + 1;
        }
        escaped = character == '\\' && !escaped;
    }
    code.len()
}

fn is_identifier(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

// ---- The repository, and how problems are reported ----

fn requirements_page() -> String {
    read_from_repository(PAGE).unwrap_or_else(|| panic!("{PAGE} cannot be read"))
}

fn read_from_repository(path: &str) -> Option<String> {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).ok()
}

fn at(line: usize, problem: impl fmt::Display) -> String {
    format!("{PAGE}:{line}: {problem}")
}

fn report(problems: &[String]) {
    assert!(problems.is_empty(), "{} problem(s):\n{}", problems.len(), problems.join("\n"));
}

const PAGE: &str = "docs/requirements.md";
const TABLE_HEADER: &str = "| id | criterion | module | shown by |";
const TABLE_RULE: &str = "|---|---|---|---|";
const NOT_SHOWN: &str = "—";
const QUALIFIERS: [&str; 4] = ["async", "pub(crate)", "pub(super)", "pub"];

const DESIGNS: [Design; 5] = [
    Design {
        number: "000",
        letter: "M",
        numbering: Numbering::Given { prefix: "", criteria_per_group: &[5, 5, 5, 5, 5] },
    },
    Design {
        number: "001",
        letter: "G",
        numbering: Numbering::Given {
            prefix: "R",
            criteria_per_group: &[6, 6, 5, 5, 5, 5, 4, 6, 4, 4, 4, 3],
        },
    },
    Design { number: "002", letter: "Q", numbering: Numbering::OwnNumbers },
    Design {
        number: "003",
        letter: "A",
        numbering: Numbering::Given { prefix: "", criteria_per_group: &[5, 5, 5, 5, 5, 5, 5, 5, 5, 5] },
    },
    Design { number: "004", letter: "S", numbering: Numbering::OwnGroups },
];

// ---- The rules bite: each test spoils one thing of a page on which everything is right ----

#[test]
fn a_perfect_page_has_no_problems() {
    assert_eq!(check(&perfect_page(), &sample_repository), NOTHING);
}

#[test]
fn a_missing_criterion_is_reported() {
    assert_eq!(problems_without("| M-3.4 |"), ["M-3.4 has no row"]);
    assert_eq!(problems_without("| G-R12.3 |"), ["G-R12.3 has no row"]);
    assert_eq!(problems_without("| A-10.5 |"), ["A-10.5 has no row"]);
}

#[test]
fn a_gap_in_our_own_numbering_is_reported() {
    assert_eq!(problems_without("| Q-2 |"), ["Q-2 has no row"]);
    assert_eq!(problems_without("| S-1.1 |"), ["S-1.1 has no row"]);
    assert_eq!(problems_without("| M-D1 |"), ["M-D1 has no row"]);
    // The middle one of three groups vanishes as a whole.
    assert_eq!(problems_without("| S-2."), ["S-2.1 has no row"]);
}

#[test]
fn a_criterion_the_design_does_not_know_is_reported() {
    assert_eq!(
        problems_after("| M-5.5 |", "| M-5.6 |"),
        ["M-5.5 has no row", "M-5.6 is no criterion of the design"]
    );
}

#[test]
fn a_missing_or_doubled_section_is_reported() {
    let without_jobs = problems_after("## Design 002 (sample)", "## Something else");
    assert!(
        without_jobs.contains(&"docs/requirements.md: design 002 has no section".to_owned()),
        "{without_jobs:?}"
    );
    let doubled = perfect_page() + "\n## Design 001 (again)\n";
    let line = doubled.lines().count();
    assert_eq!(
        check(&doubled, &sample_repository),
        [format!("docs/requirements.md:{line}: design 001 has a second section")]
    );
    assert_eq!(
        problems_after("## Design 000 (sample)", "## Design 007 (x)\n\n## Design 000 (sample)"),
        ["there is no design 007"]
    );
}

#[test]
fn a_duplicate_id_is_reported() {
    let row = format!("| Q-2 | A thing holds. | `queue` | {NOT_SHOWN} |");
    assert_eq!(problems_after(&row, &format!("{row}\n{row}")), ["the id Q-2 is used twice"]);
}

#[test]
fn ids_out_of_order_are_reported() {
    // That 10 may stand below 9 is shown by the perfect page, which has ten groups and more.
    let line = |id: &str| format!("| {id} | A thing holds. | `queue` | {NOT_SHOWN} |\n");
    let ascending = line("Q-1") + &line("Q-2");
    let descending = line("Q-2") + &line("Q-1");
    assert_eq!(problems_after(&ascending, &descending), ["Q-1 stands below Q-2"]);
}

#[test]
fn rows_that_do_not_parse_are_reported() {
    let row = format!("| Q-3 | A thing holds. | `queue` | {NOT_SHOWN} |");
    let spoil = |spoiled: &str| problems_after(&row, spoiled);
    assert_eq!(spoil("| Q-3 | A thing holds. | `queue` |"), ["a row has 4 cells, this one has 3"]);
    assert_eq!(spoil("| Q-3 | A thing holds. | `queue` | — "), ["a row ends with `|`"]);
    assert_eq!(spoil("| Q-3 |  | `queue` | — |"), ["row Q-3 has an empty cell"]);
    assert_eq!(spoil("| Q-03 | A thing holds. | `queue` | — |"), ["Q-03 is not an id of design 002"]);
    assert_eq!(spoil("| M-3.1 | A thing holds. | `queue` | — |"), ["M-3.1 is not an id of design 002"]);
    assert_eq!(spoil(r"| Q-3 | Either a \| b holds. | `queue` | — |"), NOTHING);
}

#[test]
fn a_table_without_its_header_is_reported() {
    let header = format!("Status: finished\n\n{TABLE_HEADER}\n{TABLE_RULE}");
    assert_eq!(
        problems_after(&header, &format!("Status: finished\n\n| id | what |\n{TABLE_RULE}")),
        ["a table opens with | id | criterion | module | shown by |"]
    );
    assert_eq!(
        problems_after(&header, &format!("Status: finished\n\n{TABLE_HEADER}\n|---|")),
        ["the header is followed by |---|---|---|---|"]
    );
}

#[test]
fn a_section_without_its_status_is_reported() {
    assert_eq!(
        problems_after("Status: finished", "Status: done"),
        ["the heading of a design is followed by `Status: finished`, `Status: begun` or `Status: planned`"]
    );
    assert_eq!(
        problems_after("Status: finished", "Some words.\n\nStatus: finished"),
        [
            "the heading of a design is followed by `Status: finished`, `Status: begun` or `Status: planned`",
            "a status stands directly under the heading of a design"
        ]
    );
}

#[test]
fn a_planned_row_that_claims_a_test_is_reported() {
    let claims = "| Q-3 | A thing holds. | `queue` | `crates/a/src/tests.rs::plain` |";
    assert_eq!(
        problems_after("| Q-3 | A thing holds. | `queue` | — |", claims),
        ["Q-3: planned, yet claims to be shown by `crates/a/src/tests.rs::plain`"]
    );
}

#[test]
fn a_finished_row_without_a_test_is_reported() {
    for nothing in
        [NOT_SHOWN, "later", "`crates/a/src/tests.rs`", "`crates/a/src/tests.rs::`", "`../a.rs::plain`"]
    {
        assert_eq!(
            problems_when_shown_by(nothing),
            [format!("M-2.2: {nothing} is not a `path/to/file.rs::test_name`")]
        );
    }
}

#[test]
fn a_speed_is_shown_by_a_benchmark_that_can_be_run() {
    assert_eq!(problems_when_shown_by("`bench/a/run`"), NOTHING);
    assert_eq!(
        problems_when_shown_by("`bench/a/data`<br>`bench/a/gone`"),
        ["M-2.2: bench/a/data cannot be run", "M-2.2: benchmark bench/a/gone does not exist"]
    );
    let outside = problems_when_shown_by("`bench/../run`");
    assert_eq!(outside, ["M-2.2: `bench/../run` is not a `path/to/file.rs::test_name`"]);
}

#[test]
fn a_missing_module_is_reported() {
    assert_eq!(
        problems_after(
            "| M-2.2 | A thing holds. | `crates/a/src/a.rs` |",
            "| M-2.2 | x | `crates/a/src/b.rs` |"
        ),
        ["M-2.2: module crates/a/src/b.rs does not exist"]
    );
    assert_eq!(
        problems_after("| M-2.2 | A thing holds. | `crates/a/src/a.rs` |", "| M-2.2 | x | `core::a` |"),
        ["M-2.2: `core::a` is not a `path/to/module.rs`"]
    );
}

#[test]
fn a_missing_test_file_is_reported() {
    assert_eq!(
        problems_when_shown_by("`crates/a/src/gone.rs::plain`"),
        ["M-2.2: file crates/a/src/gone.rs does not exist"]
    );
}

#[test]
fn a_missing_test_function_is_reported() {
    for absent in ["gone", "commented_out", "quoted", "plai", "plain_"] {
        assert_eq!(
            problems_when_shown_by(&format!("`crates/a/src/tests.rs::{absent}`")),
            [format!("M-2.2: crates/a/src/tests.rs has no function {absent}")]
        );
    }
}

#[test]
fn every_form_of_test_is_accepted() {
    for test in ["plain", "on_one_line", "in_tokio", "with_attributes", "property", "twice"] {
        assert_eq!(problems_when_shown_by(&format!("`crates/a/src/tests.rs::{test}`")), NOTHING, "{test}");
    }
    assert_eq!(
        problems_when_shown_by("`crates/a/src/tests.rs::plain`<br>`crates/a/src/tests.rs::in_tokio`"),
        NOTHING
    );
}

#[test]
fn a_function_that_shows_nothing_is_reported() {
    for (function, defect) in [
        ("helper", "is not a test"),
        ("helper_below_a_test", "is not a test"),
        ("property_without_test", "is not a test"),
        ("hollow", "is empty"),
        ("only_a_comment", "is empty"),
        ("sleeping", "is ignored and shows nothing"),
    ] {
        assert_eq!(
            problems_when_shown_by(&format!(
                "`crates/a/src/tests.rs::plain`<br>`crates/a/src/tests.rs::{function}`"
            )),
            [format!("M-2.2: crates/a/src/tests.rs::{function} {defect}")]
        );
    }
}

#[test]
fn problems_name_their_line() {
    let page =
        perfect_page().replace("| M-1.1 | A thing holds. | `crates/a/src/a.rs` |", "| M-1.1 | x | y |");
    let line =
        1 + page.lines().position(|line| line.starts_with("| M-1.1 |")).expect("the row was just written");
    assert_eq!(
        check(&page, &sample_repository),
        [format!("docs/requirements.md:{line}: M-1.1: y is not a `path/to/module.rs`")]
    );
}

/// All five designs, with every row there and every reference good.
fn perfect_page() -> String {
    let mut page = String::from("# Sample\n\nSome words.\n");
    for design in &DESIGNS {
        let is_finished = design.number == "000";
        let status = if is_finished { "finished" } else { "planned" };
        page += &format!(
            "\n## Design {} (sample)\nStatus: {status}\n\n{TABLE_HEADER}\n{TABLE_RULE}\n",
            design.number
        );
        // Where the page numbers itself, three criteria are enough to have a middle that can go missing.
        let sample = match design.numbering {
            Numbering::OwnNumbers => vec![(1, 1), (1, 2), (1, 3)],
            Numbering::OwnGroups => vec![(1, 1), (1, 2), (2, 1), (3, 1)],
            Numbering::Given { .. } => Vec::new(),
        };
        let mut positions: BTreeSet<Position> =
            sample.into_iter().map(|(group, number)| Position::Criterion { group, number }).collect();
        positions.extend([1, 2].map(|number| Position::DesignRule { number }));
        for position in design.expected(&positions) {
            let id = design.id(position);
            page += &if is_finished {
                format!("| {id} | A thing holds. | `crates/a/src/a.rs` | `crates/a/src/tests.rs::plain` |\n")
            } else {
                format!("| {id} | A thing holds. | `queue` | {NOT_SHOWN} |\n")
            };
        }
    }
    page
}

fn sample_repository(path: &str) -> Option<String> {
    match path {
        "crates/a/src/a.rs" => Some(String::new()),
        "crates/a/src/tests.rs" => Some(SAMPLE_TESTS.to_owned()),
        "bench/a/run" => Some("#!/usr/bin/env bash\n".to_owned()),
        "bench/a/data" => Some("1 2 3\n".to_owned()),
        _ => None,
    }
}

/// The problems of the perfect page with `right` replaced by `wrong`, without their line numbers.
fn problems_after(right: &str, wrong: &str) -> Vec<String> {
    let page = perfect_page();
    assert_eq!(page.matches(right).count(), 1, "the sample page has {right:?} once");
    let without_line_number = |problem: String| match problem.split_once(": ") {
        Some((place, what)) if place.ends_with(|c: char| c.is_ascii_digit()) => what.to_owned(),
        _ => problem,
    };
    check(&page.replace(right, wrong), &sample_repository).into_iter().map(without_line_number).collect()
}

/// The problems of the perfect page without the lines that start like this.
fn problems_without(start: &str) -> Vec<String> {
    let page = perfect_page();
    let lines: Vec<&str> = page.lines().filter(|line| line.starts_with(start)).collect();
    problems_after(&(lines.join("\n") + "\n"), "")
}

fn problems_when_shown_by(references: &str) -> Vec<String> {
    problems_after(
        "| M-2.2 | A thing holds. | `crates/a/src/a.rs` | `crates/a/src/tests.rs::plain` |",
        &format!("| M-2.2 | A thing holds. | `crates/a/src/a.rs` | {references} |"),
    )
}

const NOTHING: [&str; 0] = [];

const SAMPLE_TESTS: &str = r##"
//! fn quoted_in_docs() {}

fn helper<'a>(text: &'a str) -> char {
    let quoted = "#[test] fn quoted() { body }";
    let raw = r#"an open { brace and a " quote"#;
    '{'
}

#[test]
fn plain() {
    assert!(true);
}

fn helper_below_a_test() {
    helper("x");
}

#[test] fn on_one_line() { helper("}"); }

#[tokio::test(
    flavor = "current_thread",
    start_paused = true,
)]
pub(crate) async fn in_tokio() -> Result<(), [u8; 2]> {
    helper("x");
}

/// A test may carry more than one attribute and words after it.
#[test]
#[should_panic(expected = "a ] bracket")]
// Even a comment.
fn with_attributes() {
    panic!();
}

// #[test]
// fn commented_out() { helper("x"); }

/* /* nested */ #[test] fn commented_out() { helper("x"); } */

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn property(bytes in vec(any::<u8>().prop_map(|byte| { byte }), 0..4), flag in any::<bool>()) {
        prop_assert!(flag || bytes.is_empty());
    }

    fn property_without_test(flag in any::<bool>()) {
        prop_assert!(flag);
    }
}

#[test]
fn hollow() {}

#[test]
fn only_a_comment() {
    // Nothing to see here: { }
}

#[test]
#[ignore = "takes too long"]
fn sleeping() {
    helper("x");
}

mod first {
    fn twice() {}
}

mod second {
    #[test]
    fn twice() {
        helper("x");
    }
}
"##;
