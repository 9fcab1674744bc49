package prometheus

import (
	"encoding/json"
	"testing"
)

// TestDashboard checks the names in each query and the layout. That Prometheus parses the queries, and that sluice serves what
// they select, is a test of cmd/sluice/e2e.
func TestDashboard(t *testing.T) {
	var board struct {
		Panels []struct {
			ID      int
			Type    string
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "dashboard.json")), &board); err != nil {
		t.Fatal(err)
	}
	known, all := documented(t), rules(t)
	for _, name := range []string{"go_goroutines", "process_cpu_seconds_total", "process_resident_memory_bytes"} {
		known[name] = true
	}
	ids, cells, queries := map[int]bool{}, map[[2]int]string{}, 0
	for _, p := range board.Panels {
		if ids[p.ID] {
			t.Errorf("%s: the id %d is used twice", p.Title, p.ID)
		}
		ids[p.ID] = true
		g := p.GridPos
		for y := g.Y; y < g.Y+g.H; y++ {
			for x := g.X; x < g.X+g.W; x++ {
				if other := cells[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%s and %q overlap, or the panel exceeds the page", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if (p.Type == "row") != (len(p.Targets) == 0) {
			t.Errorf("%s: %d queries", p.Title, len(p.Targets))
		}
		for _, q := range p.Targets {
			queries++
			checkNames(t, p.Title, q.Expr, known, all)
		}
	}
	if queries < 20 {
		t.Errorf("%d queries", queries)
	}
}
