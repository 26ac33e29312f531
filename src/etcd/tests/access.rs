//! Users, passwords and permissions.

use etcd_client::Permission;

use super::*;

pub(super) const PASSWORD: &str = "canary-7f3a";

/// An etcd on which `me` may read and write below `ns/`, with a client of its root.
pub(super) async fn guarded() -> (Etcd, Client) {
    let etcd = Etcd::start().await;
    let mut client = etcd.client().await;
    client.user_add("root", PASSWORD, None).await.unwrap();
    client.role_add("root").await.unwrap();
    client.user_grant_role("root", "root").await.unwrap();
    client.user_add("me", PASSWORD, None).await.unwrap();
    client.role_add("mine").await.unwrap();
    let permission = Permission::read_write("ns/").with_prefix();
    client
        .role_grant_permission("mine", permission)
        .await
        .unwrap();
    client.user_grant_role("me", "mine").await.unwrap();
    client.auth_enable().await.unwrap();
    let root = ConnectOptions::new().with_user("root", PASSWORD);
    let root = Client::connect([&etcd.endpoint], Some(root)).await.unwrap();
    (etcd, root)
}

/// With the right password.
pub(super) fn pool_of_user(etcd: &Etcd, user: &str) -> Arc<Pool> {
    pool_of(etcd, user, PASSWORD)
}

fn pool_of(etcd: &Etcd, user: &str, password: &str) -> Arc<Pool> {
    let options = ConnectOptions::new().with_user(user, password);
    pool_with(&[&etcd.endpoint], options, TIMEOUT)
}

#[tokio::test]
async fn refused_credentials_are_auth_and_never_quoted() {
    let (etcd, _root) = guarded().await;
    for (user, password) in [("me", "canary-wrong"), ("nobody", PASSWORD)] {
        let pool = pool_of(&etcd, user, password);
        let failure = pool.list(b"ns/e/", Reach::Children).await.unwrap_err();
        assert_eq!(
            (failure.class, failure.ambiguous),
            (Class::Auth, false),
            "{failure}"
        );
        assert!(!format!("{failure} {failure:?}").contains("canary"));
    }
    // No user at all.
    let failure = etcd
        .pool()
        .list(b"ns/e/", Reach::Children)
        .await
        .unwrap_err();
    assert_eq!(
        (failure.class, failure.ambiguous),
        (Class::Auth, false),
        "{failure}"
    );
    // A user for an etcd without authentication.
    let open = Etcd::start().await;
    let failure = pool_of(&open, "me", PASSWORD)
        .list(b"ns/e/", Reach::Children)
        .await
        .unwrap_err();
    assert_eq!(failure.class, Class::Auth, "{failure}");
}

#[tokio::test]
async fn what_the_user_may_not_do_is_denied() {
    let (etcd, _root) = guarded().await;
    let pool = pool_of(&etcd, "me", PASSWORD);
    pool.list(b"ns/e/", Reach::Children).await.unwrap();
    let failure = pool.list(b"other/", Reach::Children).await.unwrap_err();
    assert_eq!(failure.class, Class::Denied, "{failure}");

    let (_sender, mut receiver) = pool
        .watch(Lane::Data, (1, b"other/".to_vec(), true))
        .await
        .unwrap();
    let refusal = soon("the refusal", receiver.next()).await.unwrap();
    let WatchMessage::Refused { id: 1, failure } = refusal else {
        panic!("{refusal:?}");
    };
    assert_eq!(failure.class, Class::Denied, "{failure}");
}

#[tokio::test]
async fn refusals_tell_which_watch_they_are_about() {
    let (etcd, _root) = guarded().await;
    let pool = pool_of(&etcd, "me", PASSWORD);
    let (mut sender, mut receiver) = pool
        .watch(Lane::Data, (1, b"ns/e/".to_vec(), true))
        .await
        .unwrap();
    // Sent without waiting for an answer: allowed and forbidden ones in no particular pattern.
    let forbidden = |id: i64| id * id % 7 == 2 || id % 10 == 0;
    for id in 2..200 {
        let key = if forbidden(id) { "other/" } else { "ns/" };
        let key = format!("{key}{id}/").into_bytes();
        let prefix = true;
        let create = WatchRequest::Create { id, key, prefix };
        sender.send(create).await.unwrap();
    }
    for _ in 1..200 {
        match soon("an answer", receiver.next()).await.unwrap() {
            WatchMessage::Created { id, .. } => assert!(!forbidden(id), "{id}"),
            WatchMessage::Refused { id, failure } => {
                assert!(forbidden(id), "{id}");
                assert_eq!(failure.class, Class::Denied, "{failure}");
            }
            other => panic!("{other:?}"),
        }
    }
    // The stream still tells of changes.
    let lease = fresh_id();
    pool.grant_as(lease, 30).await.unwrap();
    pool.join(b"ns/e/1", b"a", lease, b"ns/e/", Admission::default())
        .await
        .unwrap();
    let news = soon("the change", receiver.next()).await.unwrap();
    assert!(
        matches!(news, WatchMessage::Events { id: 1, .. }),
        "{news:?}"
    );
}

#[tokio::test]
async fn an_old_token_is_replaced_for_calls_and_streams() {
    let (etcd, mut root) = guarded().await;
    let pool = pool_of(&etcd, "me", PASSWORD);
    let id = fresh_id();
    pool.grant_as(id, 30).await.unwrap();
    pool.join(b"ns/e/1", b"a", id, b"ns/e/", Admission::default())
        .await
        .unwrap();

    // A changed password ends the user's tokens, even if it is the same one.
    root.user_change_password("me", PASSWORD).await.unwrap();
    let (_sender, mut receiver) = pool
        .watch(Lane::Data, (1, b"ns/".to_vec(), true))
        .await
        .unwrap();
    let failure = soon("the refusal", receiver.next()).await.unwrap_err();
    assert_eq!(failure.class, Class::Auth, "{failure}");
    let (_sender, mut receiver) = pool
        .watch(Lane::Data, (1, b"ns/".to_vec(), true))
        .await
        .unwrap();
    let created = soon("the watch", receiver.next()).await.unwrap();
    assert!(matches!(created, WatchMessage::Created { id: 1, .. }));

    root.user_change_password("me", PASSWORD).await.unwrap();
    pool.list(b"ns/e/", Reach::Children).await.unwrap();
    pool.lease_keys(id, b"ns/").await.unwrap();
}
