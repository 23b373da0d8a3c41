-- name: subscribers
-- Reads the subscriptions to some topics, or to all topics, at most @most rows. The server reads the
-- whole table, because its key begins with the endpoint and not with the topic.
-- Returns: topic, endpoint, address
SELECT TOP (@most) Topic AS topic, Endpoint AS endpoint, QueueAddress AS address
  FROM {subscriptions}
 WHERE @topics IS NULL
    OR Topic IN (SELECT CAST(s.value AS nvarchar(200)) COLLATE DATABASE_DEFAULT
                   FROM OPENJSON(@topics) AS s)
 ORDER BY Topic, Endpoint

-- name: subscribed
-- Reads the address that `subscribe` may replace.
-- Index:   the primary key.
-- Locks:   the endpoint's row for the topic, until commit, so that no other session replaces it.
-- Returns: address, or no row
SELECT QueueAddress AS address
  FROM {subscriptions} WITH (UPDLOCK, ROWLOCK)
 WHERE Endpoint = @endpoint AND Topic = @topic

-- name: subscribe
-- Sets the address of an endpoint for a topic. An endpoint has only one address for a topic. If this
-- address is in the table already, nothing is written.
-- Locks:   the endpoint's row for the topic, or the gap where it will be, until commit.
INSERT INTO {subscriptions} (QueueAddress, Endpoint, Topic)
SELECT @queue_address, @endpoint, @topic
 WHERE NOT EXISTS (
        SELECT 1
          FROM {subscriptions} WITH (UPDLOCK, HOLDLOCK, ROWLOCK)
         WHERE Endpoint = @endpoint AND Topic = @topic);
IF ROWCOUNT_BIG() = 0
    UPDATE {subscriptions}
       SET QueueAddress = @queue_address
     WHERE Endpoint = @endpoint AND Topic = @topic
       AND QueueAddress <> @queue_address COLLATE Latin1_General_100_BIN2

-- name: unsubscribe
-- Deletes the subscription of an endpoint to a topic.
-- Index:   the primary key.
-- Returns: ended, 1, if the endpoint was subscribed, else no row
DELETE FROM {subscriptions}
OUTPUT CAST(1 AS bit) AS ended
 WHERE Endpoint = @endpoint AND Topic = @topic
