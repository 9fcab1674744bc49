package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// TestErrorOfAnAnnotationNamesWhatMayBeChosen and nothing else: other names may say what the operator or another tenant plans.
func TestErrorOfAnAnnotationNamesWhatMayBeChosen(t *testing.T) {
	set := &Set{Policies: map[string]*Policy{}, Default: "secret-default"}
	var mine, others []string
	for i := range 100 {
		mine, others = append(mine, fmt.Sprintf("mine-%02d", i)), append(others, fmt.Sprintf("secret-%02d", i))
	}
	for _, name := range slices.Concat(mine, others, []string{"secret-default"}) {
		set.Policies[name] = &Policy{Name: name}
	}
	set.Allow = []Allow{{Namespaces: []string{"shop"}, Policies: mine}, {Namespaces: []string{"bank"}, Policies: others}}
	for annotation, want := range map[string]string{
		"mine-1": `did you mean "mine-01"?`, "secrt-01": `no policy "secrt-01" (allowed: `, "secret-01": `may not choose policy "secret-01" (allowed: `,
		strings.Repeat("x", 254): "no policy", "\x1b[2J\n": `no policy "\x1b[2J\n"`,
	} {
		svc := &model.Service{Name: model.Name{Namespace: "shop", Name: "web"}, Policy: annotation}
		_, err := set.For(svc, "", "secret-02")
		text := err.Error()
		if !strings.Contains(text, want) || !strings.Contains(text, "mine-00, mine-01") || !strings.Contains(text, "and 80 more") || len(text) > 1024 {
			t.Errorf("%q: %s (%d bytes)", annotation, text, len(text))
		}
		if rest := strings.ReplaceAll(text, annotation, ""); strings.Contains(rest, "secret") {
			t.Errorf("%q: it tells another name: %s", annotation, text)
		}
	}
}

// TestAnnotationKeepsWhatItHasChosen compares Choose with a second implementation, over random edits of annotations and
// configurations, with restarts.
func TestAnnotationKeepsWhatItHasChosen(t *testing.T) {
	names := []string{"a", "b", "c", "", "typo"}
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		random := func() *Set {
			s := &Set{Policies: map[string]*Policy{}, Default: []string{"", "c"}[r.IntN(2)]}
			for _, name := range names[:3] {
				if r.IntN(4) > 0 {
					s.Policies[name] = &Policy{Name: name}
				}
			}
			for range r.IntN(3) {
				a := Allow{Policies: names[:1+r.IntN(3)]}
				if r.IntN(2) == 0 {
					a.Namespaces = []string{[]string{"shop", "bank"}[r.IntN(2)]}
				}
				s.Allow = append(s.Allow, a)
			}
			return s
		}
		b, set := newFixture(), random()
		svc := &model.Service{Name: model.Name{Namespace: "shop", Name: "web"}}
		last := ""
		for step := range 60 {
			switch r.IntN(4) {
			case 0:
				set = random()
			case 1:
				b.restart(t)
			default:
				svc = &model.Service{Name: svc.Name, Policy: names[r.IntN(len(names))]}
			}
			usable := func(name string) bool {
				for _, a := range set.Allow {
					if (a.Namespaces == nil || a.Namespaces[0] == "shop") && slices.Contains(a.Policies, name) && set.Policies[name] != nil {
						return true
					}
				}
				return false
			}
			want := set.Policies[set.Default]
			switch {
			case svc.Policy == "":
				last = ""
			case usable(svc.Policy):
				last, want = svc.Policy, set.Policies[svc.Policy]
			case usable(last):
				want = set.Policies[last]
			}
			ports, err := b.evaluator.Choose(set, svc, nil)
			got := ports[0]
			if got != want || (err == nil) != (svc.Policy == "" || usable(svc.Policy)) || err != nil && err.NotAllowed != (set.Policies[svc.Policy] != nil) {
				t.Fatalf("seed %d, step %d: annotation %q after %q: %v, %v; want %v", seed, step, svc.Policy, last, got, err, want)
			}
			if got != nil && !slices.Contains(set.Possible(svc), got) {
				t.Fatalf("seed %d, step %d: %v is not one of the candidates %v", seed, step, got, set.Possible(svc))
			}
		}
		b.evaluator.DeleteChoice(svc.Name)
		if len(b.evaluator.choices) != 0 {
			t.Fatal("the choice stays")
		}
	}
}
