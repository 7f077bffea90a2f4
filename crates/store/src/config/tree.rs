//! YAML as a tree in which everything knows its place, and a reader of it that gathers errors instead of stopping.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use super::error::{ConfigError, ConfigProblem};

/// A value of YAML.
#[derive(Debug)]
pub(super) enum Tree {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    List(Vec<Spanned<Self>>),
    Map(Vec<(Spanned<String>, Spanned<Self>)>),
}

impl Tree {
    pub(super) fn parse(text: &str) -> Result<Spanned<Self>, ConfigError> {
        // Booleans are `true` and `false` only, so that a node may be named `no`.
        let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
        serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
            let problem = match &error {
                serde_saphyr::Error::DuplicateMappingKey { key, .. } => {
                    ConfigProblem::KeyTwice { key: key.clone().unwrap_or_default() }
                }
                _ => {
                    let message = error.to_string();
                    // The place is told once, and in the same way as for all errors.
                    let said = message.rsplit_once(" at line ").map_or(message.as_str(), |(said, _)| said);
                    ConfigProblem::Syntax { message: said.to_owned() }
                }
            };
            ConfigError { path: String::new(), line, column, problem }
        })
    }

    const fn kind(&self) -> &'static str {
        match self {
            Self::Null => "empty",
            Self::Bool(_) => "true or false",
            Self::Integer(_) | Self::Float(_) => "a number",
            Self::Text(_) => "text",
            Self::List(_) => "a list",
            Self::Map(_) => "a section",
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a setting")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Integer(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Text(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Tree, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(Tree::Map(entries))
    }
}

/// Where a setting is: its path and its place in the text.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) path: String,
    line: u64,
    column: u64,
}

impl Place {
    pub(super) fn new(path: String, at: Location) -> Self {
        Self { path, line: at.line(), column: at.column() }
    }

    pub(super) fn error(&self, problem: ConfigProblem) -> ConfigError {
        ConfigError { path: self.path.clone(), line: self.line, column: self.column, problem }
    }

    /// The place of something below, which has the same line until it is found to have its own.
    pub(super) fn below(&self, name: &str) -> Self {
        let path = match self.path.as_str() {
            "" => name.to_owned(),
            path => format!("{path}.{name}"),
        };
        Self { path, ..self.clone() }
    }
}

/// A setting that was read, and where.
pub(super) struct Found<T> {
    pub(super) value: T,
    pub(super) place: Place,
}

/// A section of the tree: settings by their names. What is not there reads as absent, what is there and wrong is noted.
pub(super) struct Section<'a> {
    pub(super) place: Place,
    entries: &'a [(Spanned<String>, Spanned<Tree>)],
}

impl<'a> Section<'a> {
    /// Takes a value for a section with these settings, and notes every other.
    pub(super) fn new(
        tree: &'a Spanned<Tree>,
        place: Place,
        known: &'static [&'static str],
        errors: &mut Vec<ConfigError>,
    ) -> Option<Self> {
        let entries: &[_] = match &tree.value {
            Tree::Map(entries) => entries,
            // `registry:` with nothing below it is a section in which everything has its default.
            Tree::Null => &[],
            other => {
                let problem = ConfigProblem::Type { expected: "a section", found: other.kind() };
                errors.push(place.error(problem));
                return None;
            }
        };
        for (key, _) in entries {
            if !known.contains(&key.value.as_str()) {
                let nearest = nearest(&key.value, known);
                let place = Place::new(place.below(&key.value).path, key.referenced);
                errors.push(place.error(ConfigProblem::UnknownKey { nearest, known }));
            }
        }
        Some(Self { place, entries })
    }

    /// The section of this name; an empty one if it is absent.
    pub(super) fn section(
        &self,
        name: &str,
        known: &'static [&'static str],
        errors: &mut Vec<ConfigError>,
    ) -> Option<Self> {
        match self.value(name) {
            Some((tree, place)) => Section::new(tree, place, known, errors),
            None => Some(Section { place: self.place.below(name), entries: &[] }),
        }
    }

    /// The items of a list.
    pub(super) fn list(
        &self,
        name: &str,
        errors: &mut Vec<ConfigError>,
    ) -> Option<Vec<(&'a Spanned<Tree>, Place)>> {
        let (tree, place) = self.value(name)?;
        match &tree.value {
            Tree::List(items) => {
                let at = |index: usize| format!("{}[{index}]", place.path);
                let items = items.iter().enumerate();
                Some(items.map(|(index, item)| (item, Place::new(at(index), item.referenced))).collect())
            }
            other => {
                errors.push(place.error(ConfigProblem::Type { expected: "a list", found: other.kind() }));
                None
            }
        }
    }

    pub(super) fn text(&self, name: &str, errors: &mut Vec<ConfigError>) -> Option<Found<String>> {
        let (tree, place) = self.value(name)?;
        text(&tree.value, place, errors)
    }

    /// A text that must be there, and not be empty.
    pub(super) fn needed_text(
        &self,
        name: &'static str,
        errors: &mut Vec<ConfigError>,
    ) -> Option<Found<String>> {
        if !self.has(name) {
            errors.push(self.place.error(ConfigProblem::Missing { key: name }));
        }
        let found = self.text(name, errors)?;
        if found.value.is_empty() {
            errors.push(found.place.error(ConfigProblem::Empty));
            return None;
        }
        Some(found)
    }

    pub(super) fn boolean(&self, name: &str, errors: &mut Vec<ConfigError>) -> Option<bool> {
        let (tree, place) = self.value(name)?;
        match &tree.value {
            Tree::Bool(value) => Some(*value),
            other => {
                let problem = ConfigProblem::Type { expected: "true or false", found: other.kind() };
                errors.push(place.error(problem));
                None
            }
        }
    }

    /// A whole number in a range that its type covers. Narrower ranges are for the bootstrap state to judge.
    pub(super) fn integer<T: TryFrom<u64>>(
        &self,
        name: &str,
        range: RangeInclusive<u64>,
        errors: &mut Vec<ConfigError>,
    ) -> Option<T> {
        let (tree, place) = self.value(name)?;
        let (min, max) = range.into_inner();
        let problem = match &tree.value {
            Tree::Integer(value) => {
                let number = u64::try_from(*value).ok().filter(|number| (min..=max).contains(number));
                if let Some(number) = number.and_then(|number| T::try_from(number).ok()) {
                    return Some(number);
                }
                ConfigProblem::Range { value: value.to_string(), min, max }
            }
            Tree::Float(value) if value.fract() == 0.0 => {
                ConfigProblem::Range { value: value.to_string(), min, max }
            }
            Tree::Float(_) => {
                ConfigProblem::Type { expected: "a whole number", found: "a number with a fraction" }
            }
            other => ConfigProblem::Type { expected: "a whole number", found: other.kind() },
        };
        errors.push(place.error(problem));
        None
    }

    /// A number of seconds, to the millisecond.
    pub(super) fn seconds(&self, name: &str, errors: &mut Vec<ConfigError>) -> Option<Duration> {
        let (tree, place) = self.value(name)?;
        let seconds = match &tree.value {
            Tree::Integer(value) => *value as f64,
            Tree::Float(value) => *value,
            other => {
                let problem = ConfigProblem::Type { expected: "a number of seconds", found: other.kind() };
                errors.push(place.error(problem));
                return None;
            }
        };
        if !(0.0..=SECONDS_MAX as f64).contains(&seconds) {
            let value = seconds.to_string();
            errors.push(place.error(ConfigProblem::Range { value, min: 0, max: SECONDS_MAX }));
            return None;
        }
        // Not negative and not too large, by the range above.
        Some(Duration::from_millis((seconds * 1000.0).round() as u64))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    /// Where a setting is, or the section if it is absent.
    pub(super) fn place_of(&self, name: &str) -> Place {
        self.value(name).map_or_else(|| self.place.below(name), |(_, place)| place)
    }

    /// A value. A key with nothing behind it counts as absent.
    fn value(&self, name: &str) -> Option<(&'a Spanned<Tree>, Place)> {
        let (key, tree) = self.entries.iter().find(|(key, _)| key.value == name)?;
        let place = Place::new(self.place.below(name).path, key.referenced);
        (!matches!(tree.value, Tree::Null)).then_some((tree, place))
    }
}

pub(super) fn text(tree: &Tree, place: Place, errors: &mut Vec<ConfigError>) -> Option<Found<String>> {
    let found = match tree {
        Tree::Text(value) => return Some(Found { value: value.clone(), place }),
        Tree::Integer(_) | Tree::Float(_) => "a number (put it in quotes)",
        other => other.kind(),
    };
    errors.push(place.error(ConfigProblem::Type { expected: "text", found }));
    None
}

/// The known key that is the fewest edits away, if that is few enough for a slip.
fn nearest(key: &str, known: &[&'static str]) -> Option<&'static str> {
    let close = known.iter().map(|one| (distance(key, one), *one)).min()?;
    let few = (close.1.len() / 3).max(1);
    (close.0 <= few).then_some(close.1)
}

/// How many letters must be added, removed, replaced or swapped with their neighbour to make one text of the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) =
        (a.chars().take(KEY_CHARS_MAX).collect(), b.chars().take(KEY_CHARS_MAX).collect());
    // Rows of the table before the last one, the last one, and this one.
    let (mut earlier, mut last): (Vec<usize>, Vec<usize>) = (Vec::new(), (0..=b.len()).collect());
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(earlier[j - 2] + 1);
            }
            row.push(least);
        }
        earlier = last;
        last = row;
    }
    last[b.len()]
}

const SECONDS_MAX: u64 = 1_000_000_000;
const KEY_CHARS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_slips() {
        let cases = [
            ("", "", 0),
            ("", "abc", 3),
            ("fanuot", "fanout", 1),
            ("seed", "seeds", 1),
            ("disk", "desks", 2),
        ];
        for (a, b, edits) in cases {
            assert_eq!((distance(a, b), distance(b, a)), (edits, edits), "{a} {b}");
        }
        assert_eq!(nearest("fanuot", &["seeds", "fanout"]), Some("fanout"));
        assert_eq!(nearest("colour", &["seeds", "fanout"]), None);
    }
}
