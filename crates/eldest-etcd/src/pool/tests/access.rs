//! Tests users, passwords and permissions.

use std::sync::Mutex;

use etcd_client::Permission;

use super::*;

pub(super) const PASSWORD: &str = "canary-7f3a";

/// Starts an etcd on which `me` may read and write below `ns/`, with a client of its root.
pub(super) async fn with_users() -> (Etcd, Client) {
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

/// Makes a pool with the user's right password.
pub(super) fn pool_of_user(etcd: &Etcd, user: &str) -> Arc<Pool> {
    pool_of(etcd, user, PASSWORD)
}

fn pool_of(etcd: &Etcd, user: &str, password: &str) -> Arc<Pool> {
    pool_as(etcd, Credentials::new(user, password))
}

fn pool_as(etcd: &Etcd, credentials: Credentials) -> Arc<Pool> {
    let access = Access::new(Some(credentials));
    pool_with(&[&etcd.endpoint], access, TIMEOUT)
}

#[tokio::test]
async fn refused_credentials_are_auth_and_never_quoted() {
    let (etcd, _root) = with_users().await;
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
    // A pool without a user.
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
}

#[tokio::test]
async fn authentication_is_disabled_and_enabled_under_a_user_and_under_none() {
    let (etcd, mut root) = with_users().await;
    let pool = pool_of(&etcd, "me", PASSWORD);
    let listed = async |pool: &Pool| pool.list(b"ns/e/", Reach::Children).await;
    listed(&pool).await.expect("as the user");

    root.auth_disable().await.unwrap();
    listed(&pool).await.expect("with a token that etcd ignores");
    let late = pool_of(&etcd, "me", PASSWORD);
    listed(&late).await.expect("without the user");
    let nobody = etcd.pool();
    listed(&nobody).await.expect("without any");

    root.auth_enable().await.unwrap();
    for pool in [&pool, &late] {
        listed(pool).await.expect("as the user again");
    }
    let failure = listed(&nobody).await.expect_err("etcd wants a user");
    assert_eq!((failure.class, failure.ambiguous), (Class::Auth, false));
}

#[tokio::test]
async fn operation_without_permission_is_denied() {
    let (etcd, _root) = with_users().await;
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
async fn refusals_name_their_watch() {
    let (etcd, _root) = with_users().await;
    let pool = pool_of(&etcd, "me", PASSWORD);
    let (mut sender, mut receiver) = pool
        .watch(Lane::Data, (1, b"ns/e/".to_vec(), true))
        .await
        .unwrap();
    // Sent without waiting for answers: allowed and forbidden watches in no particular pattern.
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
    // The stream still delivers changes.
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
async fn a_token_that_etcd_refuses_is_replaced_for_calls_and_streams() {
    let (etcd, mut root) = with_users().await;
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
    assert_eq!(failure.class, Class::Stale, "{failure}");
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

#[tokio::test]
async fn refused_token_replaces_those_of_all_lanes_and_blames_no_endpoint() {
    let (etcd, mut root) = with_users().await;
    let [first, second] = etcd.two_endpoints();
    let access = Access::new(Some(Credentials::new("me", PASSWORD)));
    let pool = pool_with(&[&first, &second], access, TIMEOUT);
    for lane in Lane::ALL {
        pool.read(lane, b"ns/e/1").await.unwrap();
    }
    let before = Lane::ALL.map(|lane| pool.ticket(lane));
    root.user_change_password("me", PASSWORD).await.unwrap();
    pool.read(Lane::Data, b"ns/e/1").await.expect("once more");
    for ticket in before {
        let now = pool.ticket(ticket.lane);
        assert!(now.generation > ticket.generation, "{:?}", ticket.lane);
        assert_eq!(now.at, ticket.at, "it stays with its endpoint");
    }
}

#[tokio::test]
async fn a_password_is_read_again_whenever_a_connection_authenticates() {
    let (etcd, mut root) = with_users().await;
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, format!("{PASSWORD}\n")).unwrap();
    let (asked, current) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(Mutex::new(PASSWORD)),
    );
    let (count, present) = (Arc::clone(&asked), Arc::clone(&current));
    let provider = Credentials::from_provider(move || {
        count.fetch_add(1, Ordering::SeqCst);
        let password = present.lock().unwrap().to_owned();
        async { Ok(("me".to_owned(), password)) }
    });
    let pools = [
        pool_as(&etcd, Credentials::from_file("me", &file)),
        pool_as(&etcd, provider),
    ];
    for pool in &pools {
        pool.list(b"ns/e/", Reach::Children).await.unwrap();
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1, "once for one connection");

    root.user_change_password("me", "canary-new").await.unwrap();
    for pool in &pools {
        let failure = pool.list(b"ns/e/", Reach::Children).await.unwrap_err();
        assert_eq!(failure.class, Class::Auth, "a fresh refusal: {failure}");
    }
    std::fs::write(&file, "canary-new\r\n").unwrap();
    *current.lock().unwrap() = "canary-new";
    for pool in &pools {
        pool.list(b"ns/e/", Reach::Children).await.unwrap();
    }

    std::fs::write(&file, "canary-one\ncanary-two").unwrap();
    root.user_change_password("me", PASSWORD).await.unwrap();
    let failure = pools[0].list(b"ns/e/", Reach::Children).await.unwrap_err();
    assert!(failure.message.contains("one line"), "{failure}");
    assert!(!format!("{failure:?}").contains("canary"), "{failure}");
}
