package coretest

// Engines that misbehave as a host's can: it dies, its lock is gone, its database
// is full, or another host comes in between.

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// errDied is what a host that died is told, if it could be told anything.
var errDied = errors.New("the host has died")

// mortal is an engine whose host dies at its n-th statement or commit: that one
// and all behind it do not happen, and its transaction ends as the server ends
// one whose client is gone.
type mortal struct {
	sqlstore.Engine
	mu   sync.Mutex
	left int
	dead bool
}

func (m *mortal) step() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left--; m.left < 0 {
		m.dead = true
	}
	if m.dead {
		return errDied
	}
	return nil
}

// dieAt sets how many steps are left.
func (m *mortal) dieAt(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left, m.dead = n, false
}

func (m *mortal) died() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dead
}

func (m *mortal) Read(ctx context.Context, op string, fn func(sqlstore.Conn) error) error {
	return m.Engine.Read(ctx, op, func(c sqlstore.Conn) error { return fn(mortalConn{m, c}) })
}

func (m *mortal) Write(ctx context.Context, op string, fn func(sqlstore.Conn) error) error {
	err := m.Engine.Write(ctx, op, func(c sqlstore.Conn) error {
		if err := fn(mortalConn{m, c}); err != nil {
			return err
		}
		return m.step() // before COMMIT
	})
	if err != nil {
		return err
	}
	return m.step() // after it
}

type mortalConn struct {
	m *mortal
	sqlstore.Conn
}

func (c mortalConn) Exec(ctx context.Context, text string, args ...any) (int64, error) {
	if err := c.m.step(); err != nil {
		return 0, err
	}
	n, err := c.Conn.Exec(ctx, text, args...)
	if err == nil {
		err = c.m.step() // it was done, and nobody learns of it
	}
	return n, err
}

func (c mortalConn) Query(ctx context.Context, text string, args ...any) (sqlstore.Rows, error) {
	if err := c.m.step(); err != nil {
		return nil, err
	}
	return c.Conn.Query(ctx, text, args...)
}

const stride = 7

// lockless is an engine whose lock went with its connection, unnoticed.
type lockless struct{ sqlstore.Engine }

func (lockless) Lock(context.Context, string) (func() error, error) {
	return func() error { return nil }, nil
}

// full is an engine whose database takes no rows of a new consumer.
type full struct{ sqlstore.Engine }

var errFull = errors.New("the disk is full")

func (f full) Write(ctx context.Context, op string, fn func(sqlstore.Conn) error) error {
	return f.Engine.Write(ctx, op, func(c sqlstore.Conn) error {
		err := fn(c)
		if err == nil && strings.HasPrefix(op, "subscribe") {
			err = errFull
		}
		return err
	})
}

// between runs something once before a transaction's first statement that locks.
type between struct {
	sqlstore.Engine
	once sync.Once
	run  func()
}

func (b *between) Write(ctx context.Context, op string, fn func(sqlstore.Conn) error) error {
	return b.Engine.Write(ctx, op, func(c sqlstore.Conn) error { return fn(betweenConn{b, c}) })
}

type betweenConn struct {
	b *between
	sqlstore.Conn
}

func (c betweenConn) Exec(ctx context.Context, text string, args ...any) (int64, error) {
	c.b.once.Do(c.b.run)
	return c.Conn.Exec(ctx, text, args...)
}

func (c betweenConn) Query(ctx context.Context, text string, args ...any) (sqlstore.Rows, error) {
	if strings.Contains(text, "FOR UPDATE") {
		c.b.once.Do(c.b.run)
	}
	return c.Conn.Query(ctx, text, args...)
}

// Lockable is a store whose rows a test can lock: a storetest.RowLocker.
func Lockable(s store.Store, c *sqlstore.Core) store.Store { return lockable{s, c} }

type lockable struct {
	store.Store
	core *sqlstore.Core
}

// LockLease holds an ownership row as a transaction does that stands still.
func (l lockable) LockLease(ctx context.Context, build int64, partition int) (unlock func() error, err error) {
	held, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- l.core.Engine.Write(context.WithoutCancel(ctx), "lock", func(conn sqlstore.Conn) error {
			n, err := conn.Exec(ctx, l.core.SQL(`UPDATE {{ownership}} SET generation = generation WHERE build = ? AND "partition" = ?`), build, int64(partition))
			if err == nil && n != 1 {
				err = store.ErrNotFound
			}
			if err == nil {
				close(held)
				<-goOn
			}
			return err
		})
	}()
	select {
	case <-held:
		return sync.OnceValue(func() error { close(goOn); return <-ended }), nil
	case err := <-ended:
		return nil, err
	}
}
