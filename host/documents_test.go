package host_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/util/strictyaml"
)

// tree is what documents may name: all that the files of the repository declare, except in comments and in Markdown.
type tree struct {
	files    []string                   // relative to the repository
	words    map[string]bool            // identifiers, words of string literals and of files in other languages
	declared map[string]map[string]bool // package or type → what it declares, and the fields and methods of its types
	values   map[string]ast.Expr        // package.name of constants, variables and fields of defaults → value
	tests    map[string][]string        // folder → tests, benchmarks and fuzz targets
	flags    map[string]bool            // of all programs
	settings map[string]bool            // paths of the fields of the configuration
	commands map[string]bool            // of sluice and kubectl sluice
	targets  *regexp.Regexp             // of make
}

var word = regexp.MustCompile(`\w+`)

// readTree reads the repository, once.
var readTree = sync.OnceValues(func() (*tree, error) {
	tr := &tree{
		words: map[string]bool{}, declared: map[string]map[string]bool{}, values: map[string]ast.Expr{},
		tests: map[string][]string{}, flags: map[string]bool{}, commands: map[string]bool{},
	}
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == ".git" || d.Name() == "bin" {
				return filepath.SkipDir
			}
			return nil
		}
		tr.files = append(tr.files, strings.TrimPrefix(filepath.ToSlash(name), "../"))
		if filepath.Ext(name) == ".md" {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if filepath.Ext(name) == ".go" && !strings.Contains(name, "testdata") {
			return tr.parse(name, text)
		}
		if len(text) < 1<<20 {
			tr.learn(string(text))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	tr.settings = map[string]bool{}
	fieldsOf("", reflect.TypeFor[config.Config](), tr.settings)
	makefile, err := os.ReadFile("../Makefile")
	var targets []string
	for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z0-9%-]*):`).FindAllStringSubmatch(string(makefile), -1) {
		targets = append(targets, strings.ReplaceAll(m[1], "%", `[\w.-]+`))
	}
	tr.targets = regexp.MustCompile(`^(` + strings.Join(targets, "|") + `)$`)
	return tr, err
})

// fieldsOf adds the paths of the fields of a type of the configuration, of lists and maps without index or key.
func fieldsOf(prefix string, t reflect.Type, into map[string]bool) {
	for t.Kind() == reflect.Slice || t.Kind() == reflect.Pointer || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return
	}
	for _, f := range strictyaml.Fields(t) {
		if name := prefix + f.Name; !into[name] {
			into[name] = true
			fieldsOf(name+".", f.Type, into)
		}
	}
}

func (tr *tree) learn(text string) {
	for _, w := range word.FindAllString(text, -1) {
		tr.words[w] = true
	}
}

func (tr *tree) declare(in, name string) {
	if tr.declared[in] == nil {
		tr.declared[in] = map[string]bool{}
	}
	tr.declared[in][name] = true
}

// flagFunction matches the functions of pflag, flag and flagrange that declare a flag.
var flagFunction = regexp.MustCompile(`^((Bool|String|StringArray|StringSlice|Int|Int64|Uint|Uint64|Float64|Duration)?(Var)?P?|Bool(Func)|Func)$`)

func (tr *tree) parse(name string, text []byte) error {
	file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	pkg := strings.TrimSuffix(file.Name.Name, "_test")
	isTest := strings.HasSuffix(name, "_test.go")
	isProduct := !isTest && !strings.Contains(name, "/lab/")
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			tr.declare(pkg, d.Name.Name)
			if isProduct && strings.HasPrefix(d.Name.Name, "Default") {
				tr.fields(pkg, d.Body)
			}
			if d.Recv != nil {
				of := d.Recv.List[0].Type
				if star, ok := of.(*ast.StarExpr); ok {
					of = star.X
				}
				if generic, ok := of.(*ast.IndexExpr); ok {
					of = generic.X
				}
				if id, ok := of.(*ast.Ident); ok {
					tr.declare(id.Name, d.Name.Name)
				}
			} else if isTest && testReference.MatchString(d.Name.Name) {
				tr.tests[path.Dir(filepath.ToSlash(name))] = append(tr.tests[path.Dir(filepath.ToSlash(name))], d.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					tr.declare(pkg, spec.Name.Name)
					tr.members(pkg, spec)
				case *ast.ValueSpec:
					for i, id := range spec.Names {
						tr.declare(pkg, id.Name)
						if i < len(spec.Values) && isProduct {
							tr.values[pkg+"."+id.Name] = spec.Values[i]
						}
					}
				}
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			tr.words[n.Name] = true
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				tr.learn(n.Value)
				tr.words[literal(n)] = true
			}
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Use" && strings.Contains(name, "/cmd/") {
				use, _, _ := strings.Cut(literal(n.Value), " ")
				tr.commands[use] = true
			}
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && !isTest && flagFunction.MatchString(f.Sel.Name) {
				if i := slices.IndexFunc(n.Args, func(e ast.Expr) bool { return literal(e) != "" }); i >= 0 {
					tr.flags[literal(n.Args[i])] = true
				}
			}
			if f, ok := n.Fun.(*ast.Ident); ok && f.Name == "newGroup" && strings.Contains(name, "/cmd/") {
				tr.commands[literal(n.Args[0])] = true
			}
		}
		return true
	})
	return nil
}

// fields records the values of the fields in what a function of defaults returns.
func (tr *tree) fields(pkg string, body *ast.BlockStmt) {
	ast.Inspect(body, func(n ast.Node) bool {
		if kv, ok := n.(*ast.KeyValueExpr); ok {
			if key, ok := kv.Key.(*ast.Ident); ok {
				tr.values[pkg+"."+key.Name] = kv.Value
			}
		}
		return true
	})
}

// members declares the fields and methods of a type, of nested structs too.
func (tr *tree) members(pkg string, spec *ast.TypeSpec) {
	ast.Inspect(spec.Type, func(n ast.Node) bool {
		if f, ok := n.(*ast.Field); ok {
			for _, id := range f.Names {
				tr.declare(pkg, id.Name)
				tr.declare(spec.Name.Name, id.Name)
			}
		}
		return true
	})
}

func literal(e ast.Expr) string {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	s, _ := strconv.Unquote(lit.Value)
	return s
}

var (
	fence         = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	fileName      = regexp.MustCompile(`^[\w./-]+\.(go|md|yaml|json|txtar|wat|c|h|rs|ts|sh|svg|mod|txt)$`)
	yamlField     = regexp.MustCompile(`^([a-z]\w*(?:\.[a-z]\w*)+|[a-z]\w*[A-Z]\w*)(?::.*)?$`)
	qualified     = regexp.MustCompile(`^(\w+)\.([A-Z]\w*)(?:\.(\w+))?(?:\(.*\))?$`)
	camelCase     = regexp.MustCompile(`^([A-Za-z]\w*[a-z][A-Z]\w*|[A-Z]+[a-z]\w*)(\(\))?$`)
	ownName       = regexp.MustCompile(`^(sluice|kubeproxy|SLUICE)_\w+$`)
	goTest        = regexp.MustCompile(`\bgo test\b.* -(?:run|bench|fuzz) '?([\w|/.]+)'?.*?( \./[\w./-]+)?$`)
	makeTarget    = regexp.MustCompile(`(?:^| )make ([a-z][\w.-]*)`)
	flagName      = regexp.MustCompile(`^--?([a-z][a-z-]+)(?:=.*)?$`)
	testReference = regexp.MustCompile(`\b(Test|Fuzz|Benchmark)[A-Z]\w*…?`)
	subcommand    = regexp.MustCompile(`^[a-z][a-z-]*$`)
	indented      = regexp.MustCompile(`(?m)^    .*$`)
	picture       = regexp.MustCompile(`[─-╿►▼]`)
	separator     = regexp.MustCompile(`&&|\|\|?|;|'|\$\(`)
	ownProgram    = regexp.MustCompile(`^(bin/[\w-]+|(kubectl )?sluice)$`)
)

// elsewhere are names that the tree cannot know, and what has them.
var elsewhere = map[string]string{
	"services.loadbalancers":         "a ResourceQuota",
	"securityContext.seLinuxOptions": "a Pod",
	"spec.podMonitorSelector":        "the Prometheus operator",
	"spec.ruleSelector":              "the Prometheus operator",
	"spec.publishNotReadyAddresses":  "a Service",
	"ipvs.syncPeriod":                "kube-proxy's configuration",
	"conntrack.max":                  "a field that does not exist",
	"nft-ip.txt":                     "sluice bundle, which composes the name",
	"nft-ip6.txt":                    "sluice bundle, which composes the name",
}

// TestDocumentsNameWhatExists checks what the documents have in code spans: names of files, Go identifiers and words in mixed
// case, metrics and environment variables, fields of the configuration, tests ("TestHostCalls…" stands for all that begin so),
// commands, flags and make targets; and the tests, commands, flags and make targets of examples. COMPATIBILITY.md is about other
// programs.
func TestDocumentsNameWhatExists(t *testing.T) {
	tr, err := readTree()
	if err != nil {
		t.Fatal(err)
	}
	if len(tr.files) < 1000 || len(tr.flags) < 50 || len(tr.commands) < 20 || len(tr.values) < 100 {
		t.Fatalf("%d files, %d flags, %d commands, %d values: the tree was not read", len(tr.files), len(tr.flags), len(tr.commands), len(tr.values))
	}
	for _, file := range markdownFiles(t) {
		if filepath.Base(file) == "COMPATIBILITY.md" {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range commandLines(string(text)) {
			if problem := tr.checkLine(path.Dir(filepath.ToSlash(file)), line); problem != "" {
				t.Errorf("%s: %s: %s", file, line, problem)
			}
		}
		examples := strings.Join(fence.FindAllString(string(text), -1), "\n")
		for _, m := range codeSpan.FindAllStringSubmatch(fence.ReplaceAllString(string(text), ""), -1) {
			if fileName.MatchString(m[1]) && strings.Contains(examples, m[1]) {
				continue // a file of the reader
			}
			if problem := tr.check(path.Dir(filepath.ToSlash(file)), strings.ReplaceAll(m[1], "\n", " ")); problem != "" {
				t.Errorf("%s: `%s`: %s", file, m[1], problem)
			}
		}
	}
}

// check returns what is wrong with a code span of a document in a folder.
func (tr *tree) check(folder, span string) string {
	switch {
	case elsewhere[span] != "":
		return ""
	case goTest.MatchString(span):
		return tr.checkTest(folder, span)
	case !slices.ContainsFunc(strings.Fields(span), func(s string) bool { return !fileName.MatchString(s) }):
		for _, name := range strings.Fields(span) {
			if problem := tr.checkFile(folder, name); problem != "" {
				return name + ": " + problem
			}
		}
	case qualified.MatchString(span):
		m := qualified.FindStringSubmatch(span)
		for _, pair := range [][2]string{{m[1], m[2]}, {m[2], m[3]}} {
			if names := tr.declared[pair[0]]; names != nil && pair[1] != "" && !names[pair[1]] {
				return pair[0] + " declares no " + pair[1]
			}
		}
	case yamlField.MatchString(span):
		name := yamlField.FindStringSubmatch(span)[1]
		if top, _, nested := strings.Cut(name, "."); nested && tr.settings[top] && !tr.settings[name] && !tr.declared[top][strings.TrimPrefix(name, top+".")] {
			return "neither a field of the configuration nor a declaration"
		}
		for part := range strings.SplitSeq(name, ".") {
			if !tr.words[part] {
				return "no such name in the code: " + part
			}
		}
	case testReference.FindString(span) == span:
		if !tr.hasTest(span) {
			return "no such test"
		}
	case camelCase.MatchString(span), ownName.MatchString(span):
		if name := strings.TrimSuffix(span, "()"); !tr.words[name] && !tr.words[strings.TrimPrefix(name, "sluice_")] {
			return "no such name in the code"
		}
	}
	for _, m := range makeTarget.FindAllStringSubmatch(span, -1) {
		if !tr.targets.MatchString(m[1]) {
			return "no such target in the Makefile"
		}
	}
	return tr.checkCommand(strings.Fields(span))
}

// commandLines returns the commands in examples: the parts of lines between pipes and the like, without prompt and comment.
func commandLines(text string) (out []string) {
	joined := strings.ReplaceAll(text, "\\\n", " ")
	for _, example := range append(fence.FindAllString(joined, -1), indented.FindAllString(fence.ReplaceAllString(joined, ""), -1)...) {
		for line := range strings.Lines(example) {
			if line, _, _ = strings.Cut(line, " #"); !picture.MatchString(line) {
				out = append(out, separator.Split(line, -1)...)
			}
		}
	}
	return out
}

// checkLine checks a command of an example.
func (tr *tree) checkLine(folder, line string) string {
	fields := strings.Fields(line)
	for len(fields) > 0 && (fields[0] == "$" || fields[0] == "sudo" || strings.Contains(fields[0], "=")) {
		fields = fields[1:]
	}
	line = strings.Join(fields, " ")
	switch {
	case goTest.MatchString(line):
		return tr.checkTest(folder, line)
	case len(fields) > 1 && fields[0] == "make":
		return tr.check(folder, line)
	case len(fields) > 0 && ownProgram.MatchString(fields[0]), strings.HasPrefix(line, "kubectl sluice "):
		return tr.checkCommand(fields)
	}
	return ""
}

// checkFile looks for a file in the folder of the document or below it, and, with a path, from each folder above; a name in a
// string literal of the code is that of a file that a program writes.
func (tr *tree) checkFile(folder, name string) string {
	below := strings.TrimPrefix(strings.TrimPrefix(folder, ".."), "/")
	for _, f := range tr.files {
		if (below == "" || strings.HasPrefix(f, below+"/")) && strings.HasSuffix("/"+f, "/"+name) {
			return ""
		}
	}
	for ; strings.Contains(name, "/") && below != ""; below = strings.TrimSuffix(path.Dir(below), ".") {
		if slices.Contains(tr.files, path.Join(below, name)) {
			return ""
		}
	}
	if slices.Contains(tr.files, name) || tr.words[name] || strings.HasPrefix(name, "bin/") || strings.HasPrefix(name, "/") {
		return ""
	}
	return "no such file"
}

// checkTest checks that a command of go test runs something.
func (tr *tree) checkTest(folder, span string) string {
	m := goTest.FindStringSubmatch(span)
	if pkg := strings.TrimSpace(m[2]); pkg != "" {
		from := ".."
		if _, err := os.Stat(path.Join("..", pkg)); err != nil {
			from = folder
		}
		folder = path.Join(from, pkg)
	}
	for alternative := range strings.SplitSeq(m[1], "|") {
		top, _, _ := strings.Cut(alternative, "/")
		if !slices.ContainsFunc(tr.tests[folder], func(test string) bool { return strings.Contains(test, top) }) && top != "." && top != "xxx" {
			return "no test matches " + top + " in " + folder
		}
	}
	return ""
}

// hasTest looks for a test by its name, or by a prefix that ends in "…".
func (tr *tree) hasTest(name string) bool {
	prefix, isPrefix := strings.CutSuffix(name, "…")
	for _, tests := range tr.tests {
		if slices.ContainsFunc(tests, func(s string) bool { return s == name || isPrefix && strings.HasPrefix(s, prefix) }) {
			return true
		}
	}
	return false
}

// checkCommand checks subcommands and flags of sluice and of the programs in bin. A flag without a program is one of sluice's:
// others' come with the name of their program.
func (tr *tree) checkCommand(fields []string) string {
	if len(fields) == 0 {
		return ""
	}
	if fields[0] == "kubectl" && len(fields) > 1 && fields[1] == "sluice" {
		fields = fields[1:]
	}
	switch first := strings.TrimPrefix(fields[0], "bin/"); {
	case first == "sluice":
		if len(fields) > 1 && subcommand.MatchString(fields[1]) && !tr.commands[fields[1]] {
			return "no such command"
		}
	case ownProgram.MatchString(fields[0]), flagName.MatchString(fields[0]), tr.commands[first]:
	default:
		return ""
	}
	for _, f := range fields {
		if f == "--" {
			return ""
		}
		if m := flagName.FindStringSubmatch(f); m != nil && !tr.flags[m[1]] && m[1] != "help" {
			return "no such flag: " + f
		}
	}
	return ""
}

var (
	generated = regexp.MustCompile(`(?ms)^<!-- \w+: begin -->.*?^<!-- \w+: end -->$`)
	notProse  = regexp.MustCompile(`^( *\||!\[|    )`)
)

// TestProseHasAtMost130Columns checks the lines of documents outside of tables, examples, pictures and what make bench writes.
func TestProseHasAtMost130Columns(t *testing.T) {
	for _, file := range markdownFiles(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(generated.ReplaceAllString(fence.ReplaceAllString(string(text), ""), "")) {
			if n := utf8.RuneCountInString(strings.TrimSpace(line)); n > 130 && !notProse.MatchString(line) {
				t.Errorf("%s: a line of %d columns: %.60s…", file, n, line)
			}
		}
	}
}
