package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/host/lab/realcluster"
	"github.com/sluice-proxy/sluice/host/lab/realcluster/load"
	"github.com/sluice-proxy/sluice/host/node/config"
)

// seconds makes a result from what servers got in each second, and how many connections were refused.
func seconds(refused []int, servers ...map[string]int) *load.Result {
	r := &load.Result{Failed: load.Failures{}, Servers: map[string]int{}}
	for i, s := range servers {
		second := load.Second{Servers: s}
		if refused[i] > 0 {
			second.Failed = load.Failures{load.Refused: refused[i]}
			r.Failed[load.Refused] += refused[i]
			r.Connections += refused[i]
		}
		for name, n := range s {
			r.Servers[name] += n
			r.Connections += n
		}
		r.Seconds = append(r.Seconds, second)
	}
	return r
}

func rolling() *row {
	old, both, after := map[string]int{"a": 10}, map[string]int{"a": 6, "b": 4}, map[string]int{"b": 10}
	return &row{
		scenario: &scenario{name: "a < b", group: "g"}, Name: "a < b", Proxy: realcluster.Sluice, Acted: 1500 * time.Millisecond, Note: "restart: 2 s",
		Result: seconds([]int{0, 0, 3, 0, 1, 0}, old, old, both, both, after, after),
	}
}

func TestRowSaysWhatFailedAndForHowLong(t *testing.T) {
	r := rolling()
	if r.repaired() != 4*time.Second || r.kinds() != "4 refused" { // the end of the fifth second, rounded
		t.Errorf("repaired %s, %s", r.repaired(), r.kinds())
	}
	if got := r.share(2, 4, r.old()); got != .4 {
		t.Errorf("share of new servers %v, want 0.4", got)
	}
	c := cells{}
	c.add(results{key{r.Name, r.Proxy}: r, key{r.Name, realcluster.KubeProxy}: {Result: seconds([]int{0}, map[string]int{"a": 5})}})
	text := c.markdown([]*scenario{r.scenario})
	want := "| a < b | sluice | 64 | 4 | 6.25 | 4 refused | 4 | restart: 2 s |\n|  | kube-proxy | 5 | 0 | 0.00 |  |  |  |\n"
	if !strings.HasSuffix(text, want) {
		t.Errorf("%s\nwant at the end\n%s", text, want)
	}
}

func TestChartIsXMLWithEachServer(t *testing.T) {
	text := chart([]*row{rolling()})
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"a &lt; b", oldColour, newColour, "4 of 64 connections failed"} {
		if !strings.Contains(text, want) {
			t.Errorf("without %q", want)
		}
	}
}

// TestRunOfSomeReplacesTheirRows: the others' stay.
func TestRunOfSomeReplacesTheirRows(t *testing.T) {
	file := filepath.Join(t.TempDir(), "results.json")
	rows, err := earlier(file)
	if err != nil || len(rows) != 0 {
		t.Fatal(rows, err)
	}
	list := []*scenario{{name: "one"}, {name: "two"}}
	for i, s := range []string{"two", "one", "two"} {
		if rows, err = earlier(file); err != nil {
			t.Fatal(err)
		}
		rows[key{s, realcluster.Sluice}] = &row{Name: s, Proxy: realcluster.Sluice, Began: time.Unix(int64(i), 0), Result: seconds([]int{i}, map[string]int{"a": 1})}
		if err := rows.save(file); err != nil {
			t.Fatal(err)
		}
	}
	var got []int
	for _, r := range rows.figure(list) {
		got = append(got, r.Result.Failed.Total())
	}
	if want := []int{1, 2}; !slices.Equal(got, want) {
		t.Errorf("failed %v, want %v: in the order of the scenarios", got, want)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := earlier(file); err == nil {
		t.Error("a broken file: no error")
	}
}

// TestRowsOfTheDocumentStay: of an earlier run whose results are gone.
func TestRowsOfTheDocumentStay(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	list := []*scenario{{name: "one"}, {name: "two"}, {name: "three"}}
	write := func(c cells) string {
		t.Helper()
		text := c.markdown(list)
		if err := os.WriteFile(page, []byte("before\n<!-- nodes: begin -->\n"+text+"<!-- nodes: end -->\n| one | sluice | of another table |\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return text
	}
	run := func(name string, proxy realcluster.Proxy, connections int) results {
		return results{key{name, proxy}: {Name: name, Proxy: proxy, Result: seconds([]int{0}, map[string]int{"a": connections})}}
	}
	first := cells{}
	first.add(run("one", realcluster.Sluice, 1))
	first.add(run("one", realcluster.KubeProxy, 2))
	first.add(run("two", realcluster.KubeProxy, 3))
	first.add(run("not any more", realcluster.Sluice, 4))
	write(first)
	again, err := published(page, "nodes")
	if err != nil {
		t.Fatal(err)
	}
	again.add(run("one", realcluster.KubeProxy, 5))
	again.add(run("two", realcluster.Sluice, 6))
	_, got, _ := strings.Cut(write(again), "|---|\n")
	want := "| one | sluice | 1 | 0 | 0.00 |  |  |  |\n|  | kube-proxy | 5 | 0 | 0.00 |  |  |  |\n| two | sluice | 6 | 0 | 0.00 |  |  |  |\n|  | kube-proxy | 3 | 0 | 0.00 |  |  |  |\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if _, err := published(page+"x", "nodes"); err == nil {
		t.Error("no document: no error")
	}
}

// TestFigureNeedsAllOfIts: that of another run stays otherwise.
func TestFigureNeedsAllOfIts(t *testing.T) {
	list := []*scenario{{name: "drawn", group: "g"}, {name: "not drawn"}}
	rows := results{key{"not drawn", realcluster.Sluice}: {}, key{"drawn", realcluster.KubeProxy}: {}}
	if got := rows.figure(list); got != nil {
		t.Errorf("without sluice's: %d rows", len(got))
	}
	rows[key{"drawn", realcluster.Sluice}] = &row{}
	if got := rows.figure(list); len(got) != 3 {
		t.Errorf("%d rows, want 3", len(got))
	}
}

// TestScenariosNameWhatExists: policies of the configuration, and each name once.
func TestScenariosNameWhatExists(t *testing.T) {
	var all []string
	for _, s := range append(faults(options{outage: time.Minute}), policies()...) {
		all = append(all, s.name)
		for _, m := range regexp.MustCompile(`sluice\.dev/policy: (\S+)`).FindAllStringSubmatch(s.web.annotations, -1) {
			if !strings.Contains(configuration, "- name: "+m[1]+"\n") || s.only != realcluster.Sluice {
				t.Errorf("%s: policy %q, only %q", s.name, m[1], s.only)
			}
		}
	}
	slices.Sort(all)
	if d := cmp.Diff(slices.Compact(slices.Clone(all)), all); d != "" {
		t.Error(d)
	}
	if _, err := config.Parse([]byte("apiVersion: sluice.dev/v1alpha1\nkind: SluiceConfiguration\n"+configuration), t.TempDir()); err != nil {
		t.Error(err)
	}
}
