package simulation

import (
	"encoding/json"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// Each field of Summary is a metric, by its JSON name in snake_case.
func TestMetricsCoverSummary(t *testing.T) {
	var s Summary
	v := reflect.ValueOf(&s).Elem()
	want := map[string]float64{}
	upper := regexp.MustCompile(`[A-Z]`)
	for i := range v.NumField() {
		name := upper.ReplaceAllStringFunc(v.Type().Field(i).Tag.Get("json"), func(c string) string { return "_" + strings.ToLower(c) })
		want[name] = float64(i + 1)
		switch f := v.Field(i); f.Kind() {
		case reflect.Float64:
			f.SetFloat(float64(i + 1))
		case reflect.Uint64:
			f.SetUint(uint64(i + 1))
		default:
			f.SetInt(int64(i + 1))
		}
	}
	got := map[string]float64{}
	for _, m := range s.Metrics() {
		got[m.Name] = m.Value
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// The JSON of a Result has no field name in upper case or with an underscore.
func TestJSONNamesAreLowerCamel(t *testing.T) {
	one := Result{Events: []Event{{}}, Comparison: &Comparison{Services: []ServiceComparison{{}}}, Runs: []Run{{
		Plugins: []PluginInfo{{}}, Policies: []PolicyInfo{{}}, Series: []Sample{{}}, Services: []ServiceResult{{Endpoints: []EndpointResult{{}}}},
	}}}
	text, err := json.Marshal(one)
	if err != nil {
		t.Fatal(err)
	}
	if names := regexp.MustCompile(`"[A-Z_]\w*":`).FindAllString(string(text), -1); names != nil {
		t.Errorf("%v", names)
	}
}
