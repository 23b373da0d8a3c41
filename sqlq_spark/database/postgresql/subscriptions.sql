-- name: subscribers
-- Reads the subscriptions to some topics, or to all, at most :most rows. The key begins with the
-- endpoint, so the whole table is read.
-- Locks nothing.
-- Returns: topic, endpoint, address
SELECT topic, endpoint, queueaddress AS address
  FROM {subscriptions}
 WHERE :topics::text IS NULL
    OR topic = ANY (ARRAY (SELECT json_array_elements_text(:topics::text::json)))
 ORDER BY topic, endpoint
 LIMIT :most::bigint

-- name: subscribed
-- Reads the address that `subscribe` may replace.
-- Index:   the primary key.
-- Locks:   the endpoint's row for the topic, until commit, so that no other session replaces it. A row
-- that another session inserts before `subscribe` is replaced without having been read.
-- Returns: address, or no row
SELECT queueaddress AS address
  FROM {subscriptions}
 WHERE endpoint = :endpoint::text AND topic = :topic::text
   FOR UPDATE

-- name: subscribe
-- Sets the one address of an endpoint and topic; writes no new row version for the same address.
-- Locks:   the endpoint's row for the topic, until commit.
INSERT INTO {subscriptions} AS s (queueaddress, endpoint, topic)
VALUES (:queue_address::text, :endpoint::text, :topic::text)
    ON CONFLICT (endpoint, topic) DO UPDATE
       SET queueaddress = excluded.queueaddress
     WHERE s.queueaddress <> excluded.queueaddress

-- name: unsubscribe
-- Index:   the primary key.
-- Returns: ended true if the endpoint was subscribed, else no row
DELETE FROM {subscriptions}
 WHERE endpoint = :endpoint::text AND topic = :topic::text
RETURNING true AS ended
