//! Whether what clients saw of one register could have happened one request after the other.
//!
//! The register claims an order itself: that of its tags. So there is no search for an order, only a test of the claimed
//! one, which is exact: a history is linearizable in the order of its tags if and only if nothing that began after an
//! answer is older than it, nothing is seen before it was begun, and nothing that had an effect lies between a conditional
//! write and the tag that it was conditional on. Values are unique, so a write whose answer was lost, and that may or may
//! not have happened, is known by its tag as soon as anybody sees its value.
//!
//! A deletion is a write after which nothing is there. Whoever finds nothing does not say which deletion that was, so it is
//! the earliest that fits: that asks the least of everything after it. A deletion whose answer was lost is taken to have
//! happened only where something would be impossible without it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use synod_core::slots::Tag;

/// What a client asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    Read,
    /// With `expected`, only if that is what is there.
    Write {
        value: u64,
        expected: Option<Option<Tag>>,
    },
    /// With `expected`, only if that is what is there.
    Delete {
        expected: Option<Option<Tag>>,
    },
}

/// What was said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Said {
    /// Nothing, or that it does not know. A write may have happened, may yet happen, or never.
    #[default]
    Unknown,
    /// Nothing was done.
    Refused,
    /// Written, with this tag.
    Written(Tag),
    /// This is there: what a read found, or why a conditional write was not done, or that there is nothing to be deleted.
    Found(Option<(Tag, u64)>),
}

/// One request of one client.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) ask: Ask,
    pub(crate) said: Said,
    pub(crate) began: Duration,
    /// When the client had the answer, if ever.
    pub(crate) ended: Option<Duration>,
    /// The tag that it was given, and when. Only a deletion needs it: nobody sees its value.
    pub(crate) given: Option<(Tag, Duration)>,
}

/// Tests all that happened to one register. The error says what could not have happened.
pub(crate) fn check(requests: &[Request]) -> Result<(), String> {
    let mut effects = effects(requests)?;
    loop {
        let Err(problem) =
            check_conditions(requests, &effects).and_then(|()| check_order(requests, &effects))
        else {
            return Ok(());
        };
        let deletion = problem.wants.as_ref().and_then(|wants| lost_deletion(requests, &effects, wants));
        let Some((tag, number)) = deletion else { return Err(problem.what) };
        effects.insert(tag, number);
    }
}

/// Something that could not have happened.
struct Problem {
    what: String,
    /// Unless there was a deletion in here: after the first, before the second, with a tag by then.
    wants: Option<(Option<Tag>, Option<Tag>, Duration)>,
}

impl Problem {
    const fn sheer(what: String) -> Self {
        Self { what, wants: None }
    }
}

/// Nothing that began after an answer is older than it.
fn check_order(requests: &[Request], effects: &BTreeMap<Tag, usize>) -> Result<(), Problem> {
    // The place of each request in the order of tags: what it wrote, or what it saw.
    let mut begun: Vec<(Duration, Place, Duration)> = Vec::new();
    let mut ended: BTreeSet<(Duration, Option<Tag>)> = BTreeSet::new();
    for (tag, write) in effects {
        begun.push((requests[*write].began, Place::Wrote(*tag), Duration::MAX));
    }
    for request in requests {
        let Some(at) = request.ended else { continue };
        match request.said {
            Said::Written(tag) => {
                ended.insert((at, Some(tag)));
            }
            Said::Found(Some((tag, _))) => {
                ended.insert((at, Some(tag)));
                begun.push((request.began, Place::Saw(tag), at));
            }
            Said::Found(None) => begun.push((request.began, Place::SawNothing, at)),
            Said::Unknown | Said::Refused => {}
        }
    }
    begun.sort_unstable();
    let mut newest = None;
    for (began, place, end) in begun {
        while ended.first().is_some_and(|(at, _)| *at < began) {
            newest = newest.max(ended.pop_first().and_then(|(_, answered)| answered));
        }
        let (what, seen) = match place {
            Place::Wrote(tag) if newest >= Some(tag) => ("wrote", Some(tag)),
            Place::Saw(tag) if newest > Some(tag) => ("saw", Some(tag)),
            Place::SawNothing if newest.is_some() => {
                let later = newest.map(|newest| effects.range(newest..)).into_iter().flatten();
                let fits = later.filter(|(_, number)| {
                    let deletion = &requests[**number];
                    matches!(deletion.ask, Ask::Delete { .. }) && deletion.is_given_by(end)
                });
                match fits.map(|(tag, _)| *tag).next() {
                    // One whose answer was lost may have come before.
                    Some(tag) if lost_deletion(requests, effects, &(newest, Some(tag), end)).is_some() => {
                        let what = "a deletion was lost".to_owned();
                        return Err(Problem { what, wants: Some((newest, Some(tag), end)) });
                    }
                    Some(tag) => {
                        ended.insert((end, Some(tag)));
                        continue;
                    }
                    None => ("saw", None),
                }
            }
            _ => continue,
        };
        let wants = seen.is_none().then_some((newest, None, end));
        let at = began.as_secs_f64();
        let (seen, newest) = (show(seen), show(newest));
        let what =
            format!("a request that began at {at:.6} s {what} {seen}, when {newest} had been answered");
        return Err(Problem { what, wants });
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    SawNothing,
    Saw(Tag),
    Wrote(Tag),
}

/// The writes that are known to have happened, by tag.
fn effects(requests: &[Request]) -> Result<BTreeMap<Tag, usize>, String> {
    let mut writes = BTreeMap::new();
    let mut effects = BTreeMap::new();
    for (number, request) in requests.iter().enumerate() {
        match (request.ask, request.said) {
            (Ask::Write { value, .. }, _) => drop(writes.insert(value, number)),
            (Ask::Delete { .. }, Said::Written(tag)) if effects.insert(tag, number).is_some() => {
                return Err(format!("two deletions have the tag {tag}"));
            }
            _ => {}
        }
    }
    let mut values: BTreeMap<Tag, u64> = BTreeMap::new();
    let mut tags: BTreeMap<u64, Tag> = BTreeMap::new();
    for request in requests {
        let (tag, value) = match (request.said, request.ask) {
            (Said::Written(tag), Ask::Write { value, .. }) => (tag, value),
            (Said::Found(Some((tag, value))), _) => (tag, value),
            _ => continue,
        };
        if *values.entry(tag).or_insert(value) != value || *tags.entry(value).or_insert(tag) != tag {
            return Err(format!("value {value} was seen with tag {tag}, and so was another one"));
        }
        let Some(number) = writes.get(&value).copied() else {
            return Err(format!("value {value} with tag {tag} was seen and never written"));
        };
        let write = &requests[number];
        if matches!(write.said, Said::Refused | Said::Found(_)) {
            return Err(format!(
                "value {value} has tag {tag}, and its writer was told that it was not written"
            ));
        }
        if request.ended.is_some_and(|at| at < write.began) {
            return Err(format!("value {value} with tag {tag} was seen before it was written"));
        }
        if effects.insert(tag, number).is_some_and(|other| other != number) {
            return Err(format!("value {value} has the tag {tag} of a deletion"));
        }
    }
    Ok(effects)
}

fn check_conditions(requests: &[Request], effects: &BTreeMap<Tag, usize>) -> Result<(), Problem> {
    let mut last = None;
    let mut there = None;
    for (tag, number) in effects {
        let ask = requests[*number].ask;
        if let Some(expected) = ask.expected()
            && expected != there
        {
            let what =
                format!("the write {tag} was to replace {} and replaced {}", show(expected), show(there));
            let wants = expected.is_none().then_some((last, Some(*tag), Duration::MAX));
            return Err(Problem { what, wants });
        }
        last = Some(*tag);
        there = last.filter(|_| !matches!(ask, Ask::Delete { .. }));
    }
    for request in requests {
        if let (Some(expected), Said::Found(found)) = (request.ask.expected(), request.said)
            && found.map(|(tag, _)| tag) == expected
            // There is nothing, as expected, and so nothing to be deleted.
            && !(matches!(request.ask, Ask::Delete { .. }) && expected.is_none())
        {
            let what = format!("a write was refused though {} was what it expected", show(expected));
            return Err(Problem::sheer(what));
        }
    }
    Ok(())
}

/// A deletion without a known end that may have happened where one is wanted.
fn lost_deletion(
    requests: &[Request],
    effects: &BTreeMap<Tag, usize>,
    (after, before, given_by): &(Option<Tag>, Option<Tag>, Duration),
) -> Option<(Tag, usize)> {
    let there_at = |tag: Tag| {
        let (last, number) = effects.range(..tag).next_back()?;
        (!matches!(requests[*number].ask, Ask::Delete { .. })).then_some(*last)
    };
    let lost = requests.iter().enumerate().filter(|(_, one)| {
        matches!(one.ask, Ask::Delete { .. }) && one.said == Said::Unknown && one.is_given_by(*given_by)
    });
    let fits =
        lost.filter_map(|(number, request)| Some((request.given?.0, number))).filter(|(tag, number)| {
            let is_between = Some(*tag) > *after && before.is_none_or(|before| *tag < before);
            let holds = requests[*number].ask.expected().is_none_or(|expected| expected == there_at(*tag));
            let next = effects.range(*tag..).next().map(|(_, next)| requests[*next].ask.expected());
            let is_in_the_way = matches!(next, Some(Some(Some(_))));
            let began = requests[*number].began;
            let is_late = requests.iter().any(|one| {
                let is_newer = match one.said {
                    Said::Written(other) | Said::Found(Some((other, _))) => other > *tag,
                    _ => false,
                };
                is_newer && one.ended.is_some_and(|ended| ended < began)
            });
            is_between && holds && !is_in_the_way && !is_late && !effects.contains_key(tag)
        });
    fits.min()
}

impl Request {
    /// Whether it could be seen by `time`: without a tag nobody sees it.
    fn is_given_by(&self, time: Duration) -> bool {
        self.given.map_or(self.began, |(_, at)| at) <= time
    }
}

impl Ask {
    const fn expected(self) -> Option<Option<Tag>> {
        match self {
            Self::Read => None,
            Self::Write { expected, .. } | Self::Delete { expected } => expected,
        }
    }
}

fn show(place: Option<Tag>) -> String {
    place.map_or_else(|| "nothing".to_owned(), |tag| tag.to_string())
}

#[cfg(test)]
mod tests;
