package nftables

import (
	"context"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

// timeRecorder records how long the kernel takes for transactions.
type timeRecorder struct {
	nfnl.Transport
	n       int
	longest time.Duration
}

func (t *timeRecorder) Send(b []byte) error {
	transaction := isTransaction(b)
	begin := time.Now()
	err := t.Transport.Send(b)
	if transaction {
		t.n, t.longest = t.n+1, max(t.longest, time.Since(begin))
	}
	return err
}

// BenchmarkReplaceTable replaces a table that another process added a chain to.
func BenchmarkReplaceTable(b *testing.B) {
	eachSize(b, func(b *testing.B, n, m int) {
		p := cluster(n, m)
		d := newTestEnv(b, 0)
		d.mustApply(p, nil)
		var used, longest time.Duration
		transactions := 0
		for b.Loop() {
			b.StopTimer()
			if out, err := d.nft("", "add", "chain", "ip", "sluice", "extra"); err != nil {
				b.Fatalf("%s: %v", out, err)
			}
			w := &timeRecorder{Transport: d.b.conn.Transport}
			d.b.conn.Transport = w
			b.StartTimer()
			begin := cpu(b)
			d.mustApply(p, nil)
			used += cpu(b) - begin
			b.StopTimer()
			d.b.conn.Transport = w.Transport
			longest, transactions = max(longest, w.longest), w.n
			b.StartTimer()
		}
		b.ReportMetric(used.Seconds()/float64(b.N), "cpu-s/op")
		b.ReportMetric(longest.Seconds()*1e3, "longest-ms")
		b.ReportMetric(float64(transactions), "transactions")
		if _, err := d.b.Read(context.Background()); err != nil {
			b.Fatal(err)
		}
	})
}
