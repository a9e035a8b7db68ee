//! A frontier of any size is stored in pages, read page by page, and each page is checked.

use super::{
    Damage, Fixture,
    sample::{Sample, items},
};
use crate::error::StoreError;
use hapax_core::limits::FRONTIER_PAGE;

const ITEMS: u32 = 3000;
const PAGES: u32 = 3;

/// 3,000 items of step 0 and of step 1.
pub async fn a_large_frontier_is_read_back_in_pages(fixture: Fixture) {
    let mut holder = Sample::run("r").items(ITEMS).hold(&fixture.store).await;
    holder.commit(holder.next_with("one", ITEMS, 0, vec![])).await.unwrap();
    let store = fixture.other_handle();
    let loaded = store.load(holder.key.clone()).await.unwrap();
    let expected = items(ITEMS);
    assert_eq!(loaded.checkpoint.frontier, expected[..FRONTIER_PAGE]);
    assert_eq!(loaded.checkpoint.frontier_len, expected.len());
    assert_eq!(loaded.checkpoint.pages.len(), PAGES as usize);
    for step in 0..=1 {
        let mut found = vec![];
        for page in 0..PAGES {
            found.extend(store.frontier_page(holder.key.clone(), step, page).await.unwrap());
        }
        assert_eq!(found, expected);
        assert_eq!(store.frontier_page(holder.key.clone(), step, PAGES).await.unwrap(), []);
    }
    assert_eq!(store.frontier_page(holder.key.clone(), 2, 0).await.unwrap(), []);
}

/// The page that is damaged, and only that one.
pub async fn a_damaged_page_is_detected(fixture: Fixture) {
    let Some(corrupt) = &fixture.corrupt else { return };
    let holder = Sample::run("r").items(ITEMS).hold(&fixture.store).await;
    assert!(corrupt(&holder.key, Damage::LastPage), "every store can be damaged there");
    let store = fixture.other_handle();
    let error = store.frontier_page(holder.key.clone(), 0, PAGES - 1).await.unwrap_err();
    let StoreError::Corrupt { run, step, .. } = &error else { panic!("{error}") };
    assert_eq!((run, *step), (&holder.key, Some(0)));
    assert_eq!(store.frontier_page(holder.key.clone(), 0, 0).await.unwrap().len(), FRONTIER_PAGE);
}
