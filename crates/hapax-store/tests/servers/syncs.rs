//! What a store says of the commits for which it waited.

use crate::{
    both::{Kind, on_both},
    operations::{Operation, Subject},
};

on_both! {
    each_operation_is_counted_as_one_sync,
}

async fn each_operation_is_counted_as_one_sync(kind: Kind) {
    let store = kind.store(&kind.database()).await;
    let mut counted = vec![];
    for operation in Operation::ALL {
        let subject = Subject::make(&store, operation, &format!("{operation:?}")).await;
        let before = store.stats().syncs;
        subject.act(&store).await.expect("nothing goes wrong");
        counted.push((operation, store.stats().syncs - before));
    }
    assert!(counted.iter().all(|(_, syncs)| *syncs == 1), "{counted:?}");
}
