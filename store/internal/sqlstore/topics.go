package sqlstore

import (
	"context"
	"fmt"

	"github.com/projhost/projhost/store"
)

// ListTopics implements [store.Topics], where a counter in the topic's row gives
// positions.
func (c *Core) ListTopics(ctx context.Context) (list []store.Topic, err error) {
	err = c.Engine.Read(ctx, "list topics", func(conn Conn) error {
		list, err = c.topics(ctx, conn, ` ORDER BY name`)
		return err
	})
	return list, err
}

// Topic implements [store.Topics].
func (c *Core) Topic(ctx context.Context, name string) (t store.Topic, err error) {
	err = c.Engine.Read(ctx, "read topic", func(conn Conn) error {
		t, err = c.ReadTopic(ctx, conn, name)
		return err
	})
	return t, err
}

// ReadTopic reads a topic's row.
func (c *Core) ReadTopic(ctx context.Context, conn Conn, name string) (store.Topic, error) {
	list, err := c.topics(ctx, conn, ` WHERE name = {{?}}`, name)
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("topic %q: %w", name, store.ErrNotFound)
	}
	if err != nil {
		return store.Topic{}, err
	}
	return list[0], nil
}

func (c *Core) topics(ctx context.Context, conn Conn, tail string, args ...any) (list []store.Topic, err error) {
	err = each(ctx, conn, c.q.topic+c.SQL(tail), args, func(r Rows) error {
		t := store.Topic{Messages: -1}
		if err := r.Scan(&t.Name, &t.Kind, &t.Start, &t.End, &t.HighWaterMark); err != nil {
			return err
		}
		if t.Kind == store.EventsTopic && c.Dialect.PositionMode == "counter" {
			t.Messages = t.End - t.Start // a rolled-back append gives its positions back
		}
		list = append(list, t)
		return nil
	})
	return list, err
}
