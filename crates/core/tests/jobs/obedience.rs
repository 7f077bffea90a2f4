//! The machine does what the naive queue does, and its checker has nothing to say about it.

use proptest::prelude::*;
use synod_core::jobs::JobLimits;
use synod_core::jobs::check::{Expectations, Record, check};

use crate::model::Model;
use crate::script::{Cast, any_step, plain_step, queue_name};

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, ..ProptestConfig::default() })]

    #[test]
    fn the_machine_does_what_the_naive_queue_does(steps in prop::collection::vec(plain_step(), 1..120)) {
        let mut cast = Cast::new(JobLimits::default());
        let mut model = Model::new(1);
        for step in &steps {
            let before = cast.log.len();
            let op = cast.play(step);
            if cast.log.len() == before {
                continue;
            }
            let dt_ms = cast.log.last().map_or(0, |(_, frame)| frame.dt_ms);
            let expected = model.apply(cast.index, dt_ms, op.as_ref());
            prop_assert_eq!(cast.effects.replies.first(), expected.as_ref(), "{:?}", op);
            let given: Vec<_> = cast.effects.deliveries.iter()
                .map(|delivery| (delivery.session, synod_core::jobs::Assignment { job: delivery.job, fence: delivery.fence }, delivery.attempt))
                .collect();
            prop_assert_eq!(&given, &model.given, "{:?}", op);
            for number in 0..2 {
                let name = queue_name(number);
                let stats = cast.queue.queue(&name).map(|stats| (stats.ready, stats.reserved, stats.delayed, stats.dead));
                prop_assert_eq!(stats.unwrap_or_default(), model.counts(&name), "{:?}", op);
            }
        }
    }

    #[test]
    fn the_checker_finds_nothing_wrong_with_the_machine(steps in prop::collection::vec(any_step(), 1..150)) {
        let mut cast = Cast::new(JobLimits::default());
        for step in &steps {
            cast.play(step);
        }
        let mut records = cast.records.clone();
        for job in &cast.jobs {
            if cast.queue.body(*job).is_some() {
                records.push(Record::Left { job: *job });
            }
        }
        let expectations = Expectations { has_listing: true, ..Expectations::default() };
        let report = check(records, &expectations);
        prop_assert!(report.is_clean(), "{:?}", report.findings);
        prop_assert_eq!(report.seen.jobs as usize, cast.jobs.len());
        prop_assert_eq!(report.seen.assignments as usize, cast.given.len());
    }
}
