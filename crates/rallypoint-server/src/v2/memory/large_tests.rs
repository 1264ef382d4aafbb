//! Large directories, and listings of a moment.

use super::*;

#[test]
fn what_goes_with_a_large_directory_is_forgotten_in_steps() {
    let mut world = World::new();
    for file in 0..FORGET_AT_ONCE + 500 {
        world.put(&format!("/large/d{}/f{file}", file % 7), "value=1&ttl=1000");
    }
    let mut below = world.watch("/large/d3/f3", "stream=true");
    let (mut dir, mut absent) = (world.watch("/large/d3", ""), world.watch("/large/d3/nothing", ""));
    world.delete("/large", "recursive=true");
    assert_eq!(
        (told(&mut below), told(&mut dir)),
        (vec!["delete /large".into()], vec!["delete /large".into()])
    );
    assert!(told(&mut absent).is_empty(), "it was never there");
    assert!(world.get("/large").contains("Key not found"));
    // It still counts, and one that is made again at the same moment is not mistaken for it.
    assert!(world.store.nodes > FORGET_AT_ONCE && world.store.ends.len() == FORGET_AT_ONCE + 500);
    world.put("/large/d3/f3", "value=2&ttl=1000");
    let mut remains: Vec<_> = world.store.take_buried().into_iter().map(Buried::into_remains).collect();
    assert!(!world.store.forget(&mut remains[0]) && world.store.forget(&mut remains[0]));
    assert_eq!((world.store.nodes, world.store.ends.len()), (3, 1));
    world.pass(1_000_001);
    world.delete("/large", "recursive=true");
    assert_eq!((world.store.nodes, world.store.weight, world.store.next_end()), (0, 0, None));
}

#[test]
fn an_end_of_what_is_gone_ends_nothing() {
    let mut world = World::new();
    for file in 0..=FORGET_AT_ONCE {
        world.put(&format!("/large/f{file}"), "value=1&ttl=10");
    }
    world.delete("/large", "recursive=true");
    let index = world.store.index();
    world.pass(20_000);
    assert_eq!((world.store.index(), world.store.next_end()), (index, None));
}

#[test]
fn a_listing_is_of_its_moment() {
    let mut world = World::new();
    for file in 0..100 {
        world.put(&format!("/d/f{file}"), "value=1");
    }
    let Ok(Answer::Listing(listing)) = world.apply(&Method::GET, "/d", "recursive=true") else { panic!() };
    world.put("/d/f7", "value=2");
    world.delete("/d", "recursive=true");
    let event = listing.event();
    assert_eq!(event.node.nodes.len(), 100);
    assert!(event.node.nodes.iter().all(|node| node.value.as_deref() == Some(b"1")));
    assert!(listing.is_small() && listing.weight() >= event.weight_below() - size_of::<Event>());
}
