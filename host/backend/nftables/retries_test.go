package nftables

import (
	"context"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testbed"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

// TestRefusedConnectionsAreTriedAgain replaces an endpoint after it has refused clients of each kind at each kind of frontend.
func TestRefusedConnectionsAreTriedAgain(t *testing.T) {
	d := newTestEnv(t, 3)
	prev := &plan.Plan{}
	d.mustApply(prev, nil)
	d.bed().CheckRetries(t, testbed.RetryPlane{
		Apply: func(next *plan.Plan) error {
			_, err := d.b.Apply(context.Background(), next, plan.Diff(prev, next))
			prev = next
			return err
		},
		Retried: func() (uint64, uint64, error) {
			r, err := ReadRetries(context.Background(), d.lab.Node.Fd())
			return r.Retried, r.NoRoom, err
		},
	})
}

// refusingService is a plan with a Service whose endpoint does not listen.
func refusingService() string {
	return strings.ReplaceAll(service(frontend("10.96.0.10:80/TCP ClusterIP masquerade=never refused=retried", "1")), ":9000", ":9001")
}

// TestWithoutRoomClientsAreRefusedAtOnce fills the set of connections that were refused once.
func TestWithoutRoomClientsAreRefusedAtOnce(t *testing.T) {
	d := newTestEnv(t, 1)
	d.apply(refusingService())
	var list nfnl.ElementList
	for i := range retriesSize {
		key := append(appendPort([]byte{198, 18, byte(i >> 8), byte(i)}, 1), 10, 96, 0, 10)
		list.Add(nfnl.Element{Key: appendPort(key, 80), Timeout: time.Hour}, "")
	}
	conn, err := nfnl.Open(d.lab.Node.Fd(), 16<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	out := nfnl.NewBatch(conn)
	out.PutElements(unix.NFT_MSG_NEWSETELEM, nfnl.Table{Family: unix.NFPROTO_IPV4, Name: tableName}, "refused_once", &list, "add")
	if err := out.Commit(); err != nil {
		t.Fatal(err)
	}
	d.expectRefused(d.client, "tcp", "10.96.0.10:80")
	if r, err := ReadRetries(context.Background(), d.lab.Node.Fd()); err != nil || r != (Retries{NoRoom: 1}) {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestRestartKeepsTheCountersOfRetries: it writes nothing.
func TestRestartKeepsTheCountersOfRetries(t *testing.T) {
	d := newTestEnv(t, 1)
	d.apply(refusingService())
	d.expectRefused(d.client, "tcp", "10.96.0.10:80")
	d.restart()
	d.apply(refusingService())
	if r, err := ReadRetries(context.Background(), d.lab.Node.Fd()); err != nil || r != (Retries{Retried: 1}) {
		t.Errorf("%+v, %v", r, err)
	}
}
