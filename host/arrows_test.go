package host_test

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// maxArrowsUp is how many percent of the arrows between the files of a package may run back up: a file that uses another one is
// above it, in the order of the files with the fewest such arrows.
const maxArrowsUp = 16

// knots are the packages with more, in percent, and why. The numbers only get smaller.
var knots = map[string]struct {
	percent int
	why     string
}{
	// A program begins in main.go, which names the commands, and each command registers itself with what main.go has for all.
	"cmd/kubectl-sluice": {25, "main.go has what all commands share"},
	"cmd/sluice":         {19, "main.go has what all commands share"},
	// A file each for the parts of one struct, which they are methods of.
	"host/backend/conformance":  {33, "a file each for the tests of a session"},
	"host/controller":           {24, "the view, with a file each for a kind of object that it judges"},
	"host/engine":               {17, "the loop calls its parts, which are methods of the Engine"},
	"host/node/agent":           {24, "Agent connects all parts of a node"},
	"host/node/metrics":         {20, "collectors are methods of Metrics"},
	"host/plugin/wasm":          {23, "Host, Plugin and sandbox refer to each other"},
	"host/node/config":          {23, "a section of the file each, of one Config and one parser"},
	"host/node/config/migrate":  {31, "a kind of input each, of one migration"},
	"host/backend/conntrack":    {18, "Table, with a file each for what it does"},
	"host/plugin/wasm/meter":    {17, "a module and its sections refer to each other"},
	"plugins/locality/locality": {30, "the two modes, with what they share"},
}

// minArrows is from how many arrows on a package is measured: below, one file says little.
const minArrows = 20

// TestFilesOfAPackageHaveAnOrder checks that one can read the files of a package from the bottom up.
func TestFilesOfAPackageHaveAnOrder(t *testing.T) {
	for _, root := range []string{"../host", "../cmd", "../plugins", "../deploy"} {
		for _, folder := range packagesBelow(t, root) {
			arrows := arrowsOf(t, folder)
			name := strings.TrimPrefix(filepath.ToSlash(folder), "../")
			up := arrowsUp(arrows)
			if len(arrows) < minArrows {
				continue
			}
			percent := len(up) * 100 / len(arrows)
			t.Logf("%s: %d of %d arrows run back up (%d %%)", name, len(up), len(arrows), percent)
			limit := maxArrowsUp
			if k, known := knots[name]; known {
				limit = k.percent
				if percent <= maxArrowsUp || percent < k.percent-2 {
					t.Errorf("%s: %d %% of the arrows run back up: lower its number", name, percent)
				}
			}
			if percent > limit {
				t.Errorf("%s: %d of %d arrows between files run back up, %d %%, more than %d: %v", name, len(up), len(arrows), percent, limit, up)
			}
		}
	}
}

// packagesBelow returns the folders with Go files of the product.
func packagesBelow(t *testing.T, root string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || path == "../host/lab"):
			return filepath.SkipDir
		case !d.IsDir() && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"):
			out = append(out, filepath.Dir(path))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// arrow leads from a file to one that it uses.
type arrow struct{ from, to string }

// arrowsOf returns the arrows between the files of a package: uses of what is declared at its top level, of fields and of
// methods.
func arrowsOf(t *testing.T, folder string) []arrow {
	t.Helper()
	set := token.NewFileSet()
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var parsed []*ast.File
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, f)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}
	// Other packages are empty: what is used of them is unknown, and no matter.
	config := types.Config{Importer: emptyPackages{}, Error: func(error) {}}
	_, _ = config.Check(folder, set, parsed, info)
	used := map[arrow]bool{}
	for id, of := range info.Uses {
		if of.Pkg() == nil || of.Pkg().Path() != folder {
			continue
		}
		a := arrow{filepath.Base(set.Position(id.Pos()).Filename), filepath.Base(set.Position(of.Pos()).Filename)}
		if a.from != a.to {
			used[a] = true
		}
	}
	return slices.SortedFunc(maps.Keys(used), func(a, b arrow) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to)) })
}

// emptyPackages imports every package as an empty one.
type emptyPackages struct{}

// Import implements types.Importer.
func (emptyPackages) Import(path string) (*types.Package, error) {
	name := path[strings.LastIndex(path, "/")+1:]
	p := types.NewPackage(path, name)
	p.MarkComplete()
	return p, nil
}

// arrowsUp returns the arrows that run back up in the best order that is found: files move to the place where the fewest of
// theirs do, until none moves.
func arrowsUp(arrows []arrow) (up []arrow) {
	var order []string
	for _, a := range arrows {
		order = append(order, a.from, a.to)
	}
	slices.Sort(order)
	order = slices.Compact(order)
	uses := map[arrow]int{}
	for _, a := range arrows {
		uses[a] = 1
	}
	for moved := true; moved; {
		moved = false
		for _, file := range slices.Clone(order) {
			at := slices.Index(order, file)
			rest := slices.Delete(slices.Clone(order), at, at+1)
			// best is the place with the fewest arrows of the file up, which are those to files before it and from files after
			// it.
			n := 0
			for _, other := range rest {
				n += uses[arrow{other, file}]
			}
			counts := []int{n}
			for _, other := range rest {
				n += uses[arrow{file, other}] - uses[arrow{other, file}]
				counts = append(counts, n)
			}
			if best := slices.Index(counts, slices.Min(counts)); counts[best] < counts[at] {
				order, moved = slices.Insert(rest, best, file), true
			}
		}
	}
	for _, a := range arrows {
		if slices.Index(order, a.to) < slices.Index(order, a.from) {
			up = append(up, a)
		}
	}
	return up
}
