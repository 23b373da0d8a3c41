-- name: subscribers
-- Reads the subscriptions to some topics, or to all topics, at most :most rows. The server reads the
-- whole table, because its key begins with the endpoint and not with the topic.
-- Locks:   nothing.
-- Returns: topic, endpoint, address
SELECT topic, endpoint, queueaddress AS address
  FROM {subscriptions}
 WHERE :topics::text IS NULL
    OR topic = ANY (ARRAY (SELECT json_array_elements_text(:topics::text::json)))
 ORDER BY topic, endpoint
 LIMIT :most::bigint

-- name: subscribed
-- Reads the address that `subscribe` may replace. If there is no row yet and another session inserts one,
-- `subscribe` replaces that row without having read it.
-- Index:   the primary key.
-- Locks:   the endpoint's row for the topic, until commit, so that no other session replaces it.
-- Returns: address, or no row
SELECT queueaddress AS address
  FROM {subscriptions}
 WHERE endpoint = :endpoint::text AND topic = :topic::text
   FOR UPDATE

-- name: subscribe
-- Sets the address of an endpoint for a topic. An endpoint has only one address for a topic. If this
-- address is in the table already, no new row version is written.
-- Locks:   the endpoint's row for the topic, until commit.
INSERT INTO {subscriptions} AS s (queueaddress, endpoint, topic)
VALUES (:queue_address::text, :endpoint::text, :topic::text)
    ON CONFLICT (endpoint, topic) DO UPDATE
       SET queueaddress = excluded.queueaddress
     WHERE s.queueaddress <> excluded.queueaddress

-- name: unsubscribe
-- Deletes the subscription of an endpoint to a topic.
-- Index:   the primary key.
-- Returns: ended true if the endpoint was subscribed, else no row
DELETE FROM {subscriptions}
 WHERE endpoint = :endpoint::text AND topic = :topic::text
RETURNING true AS ended
