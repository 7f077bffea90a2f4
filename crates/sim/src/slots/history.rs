//! Whether what clients saw of one register could have happened one request after the other.
//!
//! The register claims an order itself: that of its tags. So there is no search for an order, only a test of the claimed
//! one, which is exact: a history is linearizable in the order of its tags if and only if nothing that began after an
//! answer is older than it, nothing is seen before it was begun, and nothing that had an effect lies between a conditional
//! write and the tag that it was conditional on. Values are unique, so a write whose answer was lost, and that may or may
//! not have happened, is known by its tag as soon as anybody sees its value.

use std::collections::BTreeMap;
use std::time::Duration;

use synod_core::slots::Tag;

/// What a client asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Read,
    /// With `expected`, only if that is what is there.
    Write {
        value: u64,
        expected: Option<Option<Tag>>,
    },
}

/// What the registry said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Said {
    /// Nothing, or that it does not know. A write may have happened, may yet happen, or never.
    #[default]
    Unknown,
    /// Nothing was done.
    Refused,
    /// Written, with this tag.
    Written(Tag),
    /// This is there: what a read found, or why a conditional write was not done.
    Found(Option<(Tag, u64)>),
}

/// One request of one client.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) ask: Ask,
    pub(super) said: Said,
    pub(super) began: Duration,
    /// When the client had the answer, if ever.
    pub(super) ended: Option<Duration>,
}

/// Tests all that happened to one register. The error says what could not have happened.
pub(super) fn check(requests: &[Request]) -> Result<(), String> {
    let effects = effects(requests)?;
    check_conditions(requests, &effects)?;
    // The place of each request in the order of tags: what it wrote, or what it saw.
    let mut begun: Vec<(Duration, Option<Tag>, bool)> = Vec::new();
    let mut ended: Vec<(Duration, Option<Tag>)> = Vec::new();
    for (tag, write) in &effects {
        begun.push((requests[*write].began, Some(*tag), true));
    }
    for request in requests {
        let Some(at) = request.ended else { continue };
        match request.said {
            Said::Written(tag) => ended.push((at, Some(tag))),
            Said::Found(found) => {
                let place = found.map(|(tag, _)| tag);
                ended.push((at, place));
                begun.push((request.began, place, false));
            }
            Said::Unknown | Said::Refused => {}
        }
    }
    begun.sort_unstable();
    ended.sort_unstable();
    let mut newest = None;
    let mut answers = ended.into_iter().peekable();
    for (began, place, is_write) in begun {
        while let Some((_, answered)) = answers.next_if(|(at, _)| *at < began) {
            newest = newest.max(answered);
        }
        if place < newest || is_write && place == newest {
            let what = if is_write { "wrote" } else { "saw" };
            return Err(format!(
                "a request that began at {:.6} s {what} {}, when {} had been answered",
                began.as_secs_f64(),
                show(place),
                show(newest),
            ));
        }
    }
    Ok(())
}

/// The writes that are known to have happened, by tag.
fn effects(requests: &[Request]) -> Result<BTreeMap<Tag, usize>, String> {
    let mut writes = BTreeMap::new();
    for (number, request) in requests.iter().enumerate() {
        if let Ask::Write { value, .. } = request.ask {
            writes.insert(value, number);
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
        let Some(write) = writes.get(&value).map(|number| &requests[*number]) else {
            return Err(format!("value {value} with tag {tag} was seen and never written"));
        };
        if matches!(write.said, Said::Refused | Said::Found(_)) {
            return Err(format!(
                "value {value} has tag {tag}, and its writer was told that it was not written"
            ));
        }
        if request.ended.is_some_and(|at| at < write.began) {
            return Err(format!("value {value} with tag {tag} was seen before it was written"));
        }
    }
    Ok(values.into_iter().map(|(tag, value)| (tag, writes[&value])).collect())
}

fn check_conditions(requests: &[Request], effects: &BTreeMap<Tag, usize>) -> Result<(), String> {
    let mut before = None;
    for (tag, number) in effects {
        if let Ask::Write { expected: Some(expected), .. } = requests[*number].ask
            && expected != before
        {
            let (expected, before) = (show(expected), show(before));
            return Err(format!("the write {tag} was to replace {expected} and replaced {before}"));
        }
        before = Some(*tag);
    }
    for request in requests {
        if let (Ask::Write { expected: Some(expected), .. }, Said::Found(found)) = (request.ask, request.said)
            && found.map(|(tag, _)| tag) == expected
        {
            return Err(format!("a write was refused though {} was what it expected", show(expected)));
        }
    }
    Ok(())
}

fn show(place: Option<Tag>) -> String {
    place.map_or_else(|| "nothing".to_owned(), |tag| tag.to_string())
}

#[cfg(test)]
mod tests;
