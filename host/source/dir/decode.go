package dir

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/util/strictyaml"
)

// maxLists limits the nesting of lists.
const maxLists = 16

func (d *document) addProblem(object, field string, err error) {
	d.problems.add(source.Problem{Object: object, Field: field, Err: err})
}

// decode decodes the objects of a document from well-formed JSON.
func (d *document) decode(raw jsontext.Value) {
	if !raw.IsValid() { // it has duplicate keys or invalid UTF-8
		tree, twice, more := strictyaml.ParseJSON(raw)
		for _, path := range twice {
			d.addProblem("", strictyaml.JoinPath(d.path, path), errors.New("duplicate key: the last one is used"))
		}
		d.problems.errors += more
		var err error
		if raw, err = json.Marshal(tree); err != nil { // cannot happen: it comes from JSON
			d.addProblem("", d.path, err)
			return
		}
	}
	d.decodeItem(raw, d.path, d.implied, 0)
}

// decodeItem decodes one object, or the items of a list.
func (d *document) decodeItem(raw jsontext.Value, path, implied string, depth int) {
	switch raw.Kind() {
	case 'n':
		return
	case '{':
	default:
		d.incomplete = true
		d.addProblem("", path, fmt.Errorf("%s is not an object", describe(raw)))
		return
	}
	m := fieldsOf(raw)
	version, kind := stringField(m, "apiVersion"), stringField(m, "kind")
	if version == "" && kind == "" && implied != "" {
		version, kind, _ = strings.Cut(implied, " ")
	}
	id, meta := version+" "+kind, fieldsOf(m["metadata"])
	name := model.Name{Namespace: stringField(meta, "namespace"), Name: stringField(meta, "name")}
	item, isList := listOf(id)
	d.incomplete = d.incomplete || kind == "" || name.Name == "" && !isList
	switch {
	case kind == "":
		d.addProblem("", strictyaml.JoinPath(path, "kind"), errors.New("missing or not a string: the object is not used"))
	case isList:
		d.decodeList(m["items"], strictyaml.JoinPath(path, "items"), item, depth)
	case isKind(id):
		d.decodeObject(raw, id, name)
	default:
		for _, known := range kindNames {
			if v, k, _ := strings.Cut(known, " "); k == kind {
				d.addProblem(objectTitle(kind, name), "apiVersion", fmt.Errorf("%q is not supported, only %q", version, v))
				return
			}
		}
		d.problems.add(source.Problem{Object: objectTitle(kind, name), Err: &ignoredKind{id: strings.TrimSpace(id)}, Warning: true})
	}
}

func (d *document) decodeList(raw jsontext.Value, path, implied string, depth int) {
	var items []jsontext.Value
	switch {
	case raw == nil || raw.Kind() == 'n':
	case jsonv2.Unmarshal(raw, &items) != nil:
		d.addProblem("", path, fmt.Errorf("%s is not a list", describe(raw)))
	case depth == maxLists:
		d.addProblem("", path, fmt.Errorf("lists are nested more than %d levels deep", maxLists))
		return
	}
	for i, it := range items {
		d.decodeItem(it, path+"["+strconv.Itoa(i)+"]", implied, depth+1)
	}
}

// decodeObject decodes and converts an object of a supported kind.
func (d *document) decodeObject(raw []byte, id string, name model.Name) {
	_, kind, _ := strings.Cut(id, " ")
	if slices.Contains([]string{"Node", "Namespace", "ServiceCIDR", "ServicePlugin", "ClusterServicePolicy"}, kind) {
		name.Namespace = ""
	} else if name.Namespace == "" {
		name.Namespace = "default"
	}
	if err := checkName(name); err != nil {
		d.addProblem(objectTitle(kind, name), "metadata", err)
		return
	}
	o := &object{key: key{kind, name}}
	decoderOf(id)(raw, o)
	d.objects = append(d.objects, o)
}

// checkName accepts the names that the API server does. They are used in rulesets, logs and metrics.
func checkName(n model.Name) error {
	if n.Name == "" {
		return errors.New("no name")
	}
	for _, s := range []string{n.Name, n.Namespace} {
		bad := strings.ContainsFunc(s, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '.'
		})
		if bad || len(s) > 253 {
			return fmt.Errorf("%.300q is not a name of at most 253 lowercase letters, digits, '-' and '.'", s)
		}
	}
	return nil
}

// fieldsOf returns the fields of an object, nil for any other value.
func fieldsOf(raw jsontext.Value) (m map[string]jsontext.Value) {
	if raw == nil || jsonv2.Unmarshal(raw, &m) != nil {
		return nil
	}
	return m
}

func stringField(m map[string]jsontext.Value, key string) (s string) {
	if raw := m[key]; raw == nil || raw.Kind() != '"' || jsonv2.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

func describe(raw jsontext.Value) string {
	tree, _, _ := strictyaml.ParseJSON(raw)
	return strictyaml.Describe(tree)
}
