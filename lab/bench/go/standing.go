package main

import (
	"fmt"
	"time"

	"go.etcd.io/etcd/clientv3/concurrency"
)

// Leases live that many seconds; lab/bench/src/peer.rs says why.
const ttl = 60

// What stands in a queue: a candidate of an election, or who waits for a mutex.
type contest interface {
	win() error
	giveUp() error
}

type standing struct {
	session *concurrency.Session
	contest contest
	won     chan error
	at      time.Time
}

// The queue of this process, and the questions about it; those of lab/bench/src/standing.rs.
type queue struct {
	contest  func(session *concurrency.Session, name string) contest
	name     string
	ttl      int
	standing []*standing
	spare    *standing
}

func (q *queue) connect() (*standing, error) {
	session, err := session(q.ttl)
	return &standing{session: session}, err
}

func (q *queue) join(s *standing) error {
	q.stand(s, q.name)
	q.standing = append(q.standing, s)
	// Standing does not tell when the key is there.
	key := fmt.Sprintf("%s/%x", q.name, s.session.Lease())
	for {
		read, err := s.session.Client().Get(ctx, key)
		if err != nil || len(read.Kvs) > 0 {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

func (q *queue) stand(s *standing, name string) {
	s.contest = q.contest(s.session, name)
	s.won = make(chan error, 1)
	go func() {
		err := s.contest.win()
		s.at = time.Now()
		s.won <- err
	}()
}

func (q *queue) handover() ([]float64, error) {
	old, next := q.standing[0], q.standing[1]
	q.standing = q.standing[1:]
	start := time.Now()
	if err := old.contest.giveUp(); err != nil {
		return nil, err
	}
	if err := <-next.won; err != nil {
		return nil, err
	}
	return []float64{nanos(next.at.Sub(start))}, q.join(old)
}

func nanos(duration time.Duration) float64 {
	return float64(duration.Nanoseconds())
}

func (q *queue) questions() questions {
	return questions{
		"gather": func(words []string) ([]float64, error) {
			for _, s := range q.standing {
				s.session.Client().Close()
			}
			q.name, q.standing, q.spare = words[0], nil, nil
			for i := 0; i < number(words[1]); i++ {
				s, err := q.connect()
				if err != nil {
					return nil, err
				}
				if err := q.join(s); err != nil {
					return nil, err
				}
			}
			return nil, <-q.standing[0].won
		},
		"ttl": func(words []string) ([]float64, error) {
			q.ttl = number(words[0])
			return nil, nil
		},
		"handover": func([]string) ([]float64, error) {
			return q.handover()
		},
		"alone": func(words []string) ([]float64, error) {
			if q.spare == nil {
				spare, err := q.connect()
				if err != nil {
					return nil, err
				}
				q.spare = spare
			}
			contest := q.contest(q.spare.session, words[0])
			start := time.Now()
			if err := contest.win(); err != nil {
				return nil, err
			}
			won := time.Since(start)
			err := contest.giveUp()
			return []float64{nanos(won), nanos(time.Since(start))}, err
		},
		"stand": func(words []string) ([]float64, error) {
			q.name = words[0]
			s, err := q.connect()
			if err != nil {
				return nil, err
			}
			return nil, q.join(s)
		},
		"lead": func([]string) ([]float64, error) {
			first := q.standing[0]
			err := <-first.won
			return []float64{float64(first.at.UnixNano())}, err
		},
	}
}

type election struct{ *concurrency.Election }

func (e election) win() error    { return e.Campaign(ctx, "bench") }
func (e election) giveUp() error { return e.Resign(ctx) }

type mutex struct{ *concurrency.Mutex }

func (m mutex) win() error    { return m.Lock(ctx) }
func (m mutex) giveUp() error { return m.Unlock(ctx) }

func init() {
	elections := func() questions {
		contest := func(session *concurrency.Session, name string) contest {
			return election{concurrency.NewElection(session, name)}
		}
		return (&queue{contest: contest, ttl: ttl}).questions()
	}
	for _, bench := range []string{"handover", "join", "takeover/killed"} {
		benches[bench] = elections
	}
	benches["locks"] = func() questions {
		contest := func(session *concurrency.Session, name string) contest {
			return mutex{concurrency.NewMutex(session, name)}
		}
		return (&queue{contest: contest, ttl: ttl}).questions()
	}
}
