//! The law that clients of one object must find obeyed: what they saw could have happened one request after the other, each
//! at some moment between its beginning and its end.
//!
//! Whether there is such an order is found by a search. A *point* of it says which requests have had their turn, and what is
//! there then; from it, every request can be next that nobody else must precede, and that would have been answered so.
//!
//! A write without a known end may have its turn at any time after its beginning, or never. Many of them would make the
//! search endless, but for two laws. Those that nobody could tell apart (values that were never seen are all alike) have their
//! turns in the order of their beginnings. And a point is not visited if another one was that differs from it only in having
//! used fewer of them: whatever can follow the one can follow the other.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::time::Duration;

/// What a client asked for. Each value is written by one request only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ask {
    Read,
    Put(u64),
    /// Only if nothing is there.
    Create(u64),
    /// Only if this is there.
    Swap {
        expected: u64,
        value: u64,
    },
    Delete,
}

/// What it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// It was done.
    Done,
    /// This was read.
    Found(Option<u64>),
    /// The condition does not hold. Whether something is there.
    Refused { is_there: bool },
    /// Nothing, or that nobody knows.
    Unknown,
}

/// One request, with the times of one clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) ask: Ask,
    pub(crate) said: Said,
    pub(crate) began: Duration,
    pub(crate) ended: Duration,
    /// Which node was asked, for those who read what went wrong.
    pub(crate) node: usize,
}

/// What is there.
type Value = Option<u64>;

/// Tests all that was asked of one object, beginning with nothing. The error says where it went wrong.
pub(crate) fn check(requests: &[Request]) -> Result<(), String> {
    let search = Search::new(requests);
    let first = Point { place: Place::default(), used: vec![0; search.lost.len()] };
    let (mut to_visit, mut furthest) = (vec![first.clone()], first);
    let (mut visited, mut count) = (HashMap::<Place, Vec<Vec<usize>>>::new(), 0);
    while let Some(point) = to_visit.pop() {
        if point.place.next == search.answered.len() {
            return Ok(());
        }
        if point.place.answered() > furthest.place.answered() {
            furthest = point.clone();
        }
        for next in search.after(&point) {
            let known = visited.entry(next.place.clone()).or_default();
            let is_fewer =
                |known: &Vec<usize>| known.iter().zip(&next.used).all(|(known, used)| known <= used);
            if !known.iter().any(is_fewer) {
                known.push(next.used.clone());
                to_visit.push(next);
                count += 1;
            }
        }
        if count > POINTS_MAX {
            return Err(format!("no order was found among {POINTS_MAX} points; {}", search.show(&furthest)));
        }
    }
    Err(format!("there is no order; {}", search.show(&furthest)))
}

struct Search {
    /// Requests with a known end, by their beginnings.
    answered: Vec<Request>,
    /// Writes without one: those that nobody could tell apart, by their beginnings.
    lost: Vec<Vec<Request>>,
}

/// How far an order has come, and which lost writes it has used.
#[derive(Clone, Debug)]
struct Point {
    place: Place,
    /// How many of each group of lost writes have had their turn.
    used: Vec<usize>,
}

/// How far an order has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Place {
    /// The first of the answered requests that has not had its turn.
    next: usize,
    /// Those after it that have.
    beyond: BTreeSet<usize>,
    value: Value,
}

impl Place {
    fn answered(&self) -> usize {
        self.next + self.beyond.len()
    }

    fn take(&mut self, index: usize) {
        self.beyond.insert(index);
        while self.beyond.remove(&self.next) {
            self.next += 1;
        }
    }
}

impl Search {
    fn new(requests: &[Request]) -> Self {
        let seen: HashSet<u64> = requests.iter().filter_map(seen).collect();
        let known = |value: u64| if seen.contains(&value) { value } else { UNSEEN };
        let mut requests: Vec<Request> = requests.to_vec();
        requests.sort_by_key(|request| request.began);
        let (mut answered, mut lost) = (Vec::new(), Vec::<Vec<Request>>::new());
        let mut groups: HashMap<Ask, usize> = HashMap::new();
        for mut request in requests {
            request.ask = match request.ask {
                Ask::Put(value) => Ask::Put(known(value)),
                Ask::Create(value) => Ask::Create(known(value)),
                Ask::Swap { expected, value } => Ask::Swap { expected, value: known(value) },
                ask @ (Ask::Read | Ask::Delete) => ask,
            };
            match request {
                Request { said: Said::Unknown, ask: Ask::Read, .. } => {}
                Request { said: Said::Unknown, ask, .. } => {
                    let group = *groups.entry(ask).or_insert_with(|| {
                        lost.push(Vec::new());
                        lost.len() - 1
                    });
                    lost[group].push(request);
                }
                request => answered.push(request),
            }
        }
        Self { answered, lost }
    }

    /// The points that one more request leads to, the likely ones last.
    fn after(&self, point: &Point) -> Vec<Point> {
        let (waiting, first_end) = self.waiting(point);
        let mut found = Vec::new();
        for (group, requests) in self.lost.iter().enumerate() {
            let Some(request) = requests.get(point.used[group]).filter(|request| request.began <= first_end)
            else {
                continue;
            };
            // A write that changes nothing may as well not have happened.
            if let Some(value) = apply(point.place.value, request).filter(|value| *value != point.place.value)
            {
                let mut next = point.clone();
                next.place.value = value;
                next.used[group] += 1;
                found.push(next);
            }
        }
        for index in waiting.into_iter().rev() {
            if let Some(value) = apply(point.place.value, &self.answered[index]) {
                let mut next = point.clone();
                next.place.value = value;
                next.place.take(index);
                found.push(next);
            }
        }
        found
    }

    /// The answered requests that can be next, and the first end of those that have not had their turn.
    fn waiting(&self, point: &Point) -> (Vec<usize>, Duration) {
        let (mut waiting, mut first_end) = (Vec::new(), Duration::MAX);
        for (index, request) in self.answered.iter().enumerate().skip(point.place.next) {
            // All others began later still.
            if request.began > first_end {
                break;
            }
            if !point.place.beyond.contains(&index) {
                waiting.push(index);
                first_end = first_end.min(request.ended);
            }
        }
        (waiting, first_end)
    }

    fn show(&self, point: &Point) -> String {
        let mut text = format!(
            "{} of {} answers fit, then there is {}, and none of these can be next:",
            point.place.answered(),
            self.answered.len(),
            Shown(point.place.value)
        );
        let waiting = self.waiting(point).0;
        for index in &waiting {
            text += &format!("\n  {:?}", self.answered[*index]);
        }
        for (requests, used) in self.lost.iter().zip(&point.used) {
            text +=
                &format!("\n  without an answer, {used} of {} used: {:?}", requests.len(), requests[0].ask);
        }
        // What led there, as far as memory goes.
        let now = waiting.iter().map(|index| self.answered[*index].ended).min().unwrap_or_default();
        let all = self.answered.iter().chain(self.lost.iter().flatten());
        let mut recent: Vec<&Request> =
            all.filter(|request| request.began <= now && request.ended + SHOWN >= now).collect();
        recent.sort_by_key(|request| request.began);
        for Request { ask, said, began, ended, node } in recent {
            text += &format!("\n  {began:>12.3?} to {ended:>12.3?}, node {node}: {ask:?}, {said:?}");
        }
        text
    }
}

/// What is there after a request, if it would have been answered so.
fn apply(value: Value, request: &Request) -> Option<Value> {
    match (request.ask, request.said) {
        (Ask::Read, Said::Found(found)) => (value == found).then_some(value),
        (Ask::Put(new), Said::Done | Said::Unknown) => Some(Some(new)),
        (Ask::Create(new), Said::Done | Said::Unknown) => value.is_none().then_some(Some(new)),
        (Ask::Swap { expected, value: new }, Said::Done | Said::Unknown) => {
            (value == Some(expected)).then_some(Some(new))
        }
        (Ask::Delete, Said::Done | Said::Unknown) => Some(None),
        (Ask::Create(_), Said::Refused { is_there: true }) => value.is_some().then_some(value),
        (Ask::Swap { expected, .. }, Said::Refused { is_there }) => {
            (value != Some(expected) && value.is_some() == is_there).then_some(value)
        }
        // No such answer exists.
        _ => None,
    }
}

/// The value that a request proves to have been seen.
fn seen(request: &Request) -> Option<u64> {
    match (request.ask, request.said) {
        (_, Said::Found(found)) => found,
        (Ask::Swap { expected, .. }, _) => Some(expected),
        _ => None,
    }
}

struct Shown(Value);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("nothing"),
            Some(UNSEEN) => f.write_str("a value that nobody saw"),
            Some(value) => write!(f, "value {value}"),
        }
    }
}

/// Stands for all values that nobody ever saw.
const UNSEEN: u64 = u64::MAX;
/// How much of what was before is shown with an error.
const SHOWN: Duration = Duration::from_secs(5);
/// Far more than a history takes whose clients are few.
const POINTS_MAX: usize = 5_000_000;

mod tests {
    use super::*;

    /// Requests one after the other, unless told otherwise.
    fn request(ask: Ask, said: Said, time: std::ops::Range<u64>) -> Request {
        let [began, ended] = [time.start, time.end].map(Duration::from_secs);
        Request { ask, said, began, ended, node: 0 }
    }

    fn is_legal(requests: &[Request]) -> bool {
        check(requests).is_ok()
    }

    #[test]
    fn what_happened_one_after_the_other_is_legal() {
        let requests = [
            request(Ask::Read, Said::Found(None), 0..1),
            request(Ask::Create(1), Said::Done, 2..3),
            request(Ask::Create(2), Said::Refused { is_there: true }, 4..5),
            request(Ask::Swap { expected: 1, value: 3 }, Said::Done, 6..7),
            request(Ask::Swap { expected: 1, value: 4 }, Said::Refused { is_there: true }, 8..9),
            request(Ask::Read, Said::Found(Some(3)), 10..11),
            request(Ask::Delete, Said::Done, 12..13),
            request(Ask::Swap { expected: 3, value: 5 }, Said::Refused { is_there: false }, 14..15),
            request(Ask::Put(6), Said::Done, 16..17),
            request(Ask::Read, Said::Found(Some(6)), 18..19),
        ];
        assert_eq!(check(&requests), Ok(()));
        // Each answer is needed where it is: without the write before it, it is wrong.
        for missing in [1, 3, 6, 8] {
            let mut fewer = requests.to_vec();
            fewer.remove(missing);
            assert!(!is_legal(&fewer), "without {missing}");
        }
    }

    #[test]
    fn requests_at_the_same_time_may_have_had_any_order() {
        let both = [request(Ask::Put(1), Said::Done, 0..10), request(Ask::Put(2), Said::Done, 0..10)];
        for last in [1, 2] {
            let read = request(Ask::Read, Said::Found(Some(last)), 11..12);
            assert!(is_legal(&[both[0], both[1], read]));
            // A reader meanwhile sees the other one, or nothing yet.
            let meanwhile = request(Ask::Read, Said::Found(Some(3 - last)), 1..2);
            assert!(is_legal(&[both[0], both[1], meanwhile, read]));
            assert!(is_legal(&[both[0], both[1], request(Ask::Read, Said::Found(None), 1..2), read]));
        }
        // And not both orders.
        let reads = [
            request(Ask::Read, Said::Found(Some(1)), 11..12),
            request(Ask::Read, Said::Found(Some(2)), 13..14),
        ];
        assert!(!is_legal(&[both[0], both[1], reads[0], reads[1]]));
    }

    #[test]
    fn a_lost_write_is_noticed() {
        let put = request(Ask::Put(1), Said::Done, 0..1);
        assert!(!is_legal(&[put, request(Ask::Read, Said::Found(None), 2..3)]));
        assert!(!is_legal(&[put, request(Ask::Create(2), Said::Done, 2..3)]));
    }

    #[test]
    fn a_stale_read_is_noticed() {
        let puts = [request(Ask::Put(1), Said::Done, 0..1), request(Ask::Put(2), Said::Done, 2..3)];
        assert!(!is_legal(&[puts[0], puts[1], request(Ask::Read, Said::Found(Some(1)), 4..5)]));
        assert!(is_legal(&[puts[0], puts[1], request(Ask::Read, Said::Found(Some(1)), 1..5)]));
    }

    #[test]
    fn a_value_that_was_seen_and_is_gone_is_noticed() {
        // Nobody was told that it was written, and somebody saw it.
        let put = request(Ask::Put(1), Said::Unknown, 0..1);
        let seen = request(Ask::Read, Said::Found(Some(1)), 2..3);
        let gone = request(Ask::Read, Said::Found(None), 4..5);
        assert!(is_legal(&[put, gone]));
        assert!(is_legal(&[put, seen]));
        assert!(!is_legal(&[put, seen, gone]));
        // It may come late, and once.
        assert!(is_legal(&[put, request(Ask::Read, Said::Found(None), 1..2), seen]));
        let deleted = request(Ask::Delete, Said::Done, 4..5);
        assert!(!is_legal(&[put, seen, deleted, request(Ask::Read, Said::Found(Some(1)), 6..7)]));
    }

    #[test]
    fn two_winners_are_noticed() {
        let create = |value| request(Ask::Create(value), Said::Done, 0..10);
        assert!(is_legal(&[create(1)]));
        assert!(!is_legal(&[create(1), create(2)]));
        let swap = |value| request(Ask::Swap { expected: 1, value }, Said::Done, 11..20);
        assert!(is_legal(&[create(1), swap(2)]));
        assert!(!is_legal(&[create(1), swap(2), swap(3)]));
        // With a deletion in between there can be two.
        assert!(is_legal(&[create(1), request(Ask::Delete, Said::Unknown, 5..6), create(2)]));
    }

    #[test]
    fn a_refusal_for_no_reason_is_noticed() {
        let refused = request(Ask::Create(1), Said::Refused { is_there: true }, 2..3);
        assert!(!is_legal(&[refused]));
        assert!(is_legal(&[request(Ask::Put(2), Said::Unknown, 0..1), refused]));
        assert!(!is_legal(&[request(Ask::Put(2), Said::Unknown, 4..5), refused]), "it began later");
        let put = request(Ask::Put(1), Said::Done, 0..1);
        let swap = |is_there| request(Ask::Swap { expected: 1, value: 2 }, Said::Refused { is_there }, 2..3);
        assert!(!is_legal(&[put, swap(true)]));
        assert!(!is_legal(&[put, swap(false)]));
    }

    #[test]
    fn a_value_from_nowhere_is_noticed() {
        assert!(!is_legal(&[request(Ask::Read, Said::Found(Some(7)), 0..1)]));
    }

    #[test]
    fn many_writes_without_an_end_do_not_make_the_search_endless() {
        let mut requests = Vec::new();
        for round in 0..200 {
            let (value, at) = (round * 10, round * 10);
            requests.push(request(Ask::Put(value), Said::Unknown, at..at + 1));
            requests.push(request(Ask::Delete, Said::Unknown, at..at + 1));
            requests.push(request(Ask::Put(value + 1), Said::Done, at + 2..at + 3));
            requests.push(request(Ask::Read, Said::Found(Some(value + 1)), at + 4..at + 5));
        }
        assert_eq!(check(&requests), Ok(()));
        // One answer that cannot be, at the very end.
        requests.push(request(Ask::Read, Said::Found(Some(1)), 3000..3001));
        assert!(!is_legal(&requests));
    }
}
