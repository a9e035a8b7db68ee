//! What a store says of the commits for which it waited.

use crate::{
    both::{Kind, on_both},
    operations::{Operation, Subject},
};

on_both! {
    each_operation_is_counted_as_the_syncs_that_it_waits_for,
}

async fn each_operation_is_counted_as_the_syncs_that_it_waits_for(kind: Kind) {
    let store = kind.store(&kind.database()).await;
    let mut counted = vec![];
    for operation in Operation::ALL {
        let subject = Subject::make(&store, operation, &format!("{operation:?}")).await;
        let before = store.stats().syncs;
        subject.act(&store).await.expect("nothing goes wrong");
        counted.push((operation, store.stats().syncs - before));
    }
    // Only the end of a child may take two: a transaction whose fence lets nothing pass, and the one that tells the parent.
    let expected = |operation| if operation == Operation::StepThatEndsAChild { 1..=2 } else { 1..=1 };
    assert!(counted.iter().all(|(operation, syncs)| expected(*operation).contains(syncs)), "{counted:?}");
}
