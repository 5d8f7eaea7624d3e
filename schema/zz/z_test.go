package zz
import ("testing";"math/rand";"strings";"fmt";"time";"gopkg.in/yaml.v3")
func try(s string) (p any) { defer func(){ p = recover() }(); var n yaml.Node; d := yaml.NewDecoder(strings.NewReader(s)); for range 3 { if d.Decode(&n) != nil {break} }; return nil }
func TestZ(t *testing.T) {
	toks := []string{"# x","a: 1","b:","","- c","- d: 1","-","? e",": f","a: # y", "b: |", "a: {", "}", "- # z", "- {a: # q", "---"}
	seen := map[string]bool{}
	start := time.Now(); n := 0
	for time.Since(start) < 60*time.Second {
		n++
		var b strings.Builder
		for range 2+rand.Intn(8) { b.WriteString(strings.Repeat(" ", rand.Intn(4))+toks[rand.Intn(len(toks))]+"\n") }
		if p := try(b.String()); p != nil { k := fmt.Sprint(p); if !seen[k] { seen[k]=true; fmt.Printf("%q %v\n", b.String(), p) } }
	}
	fmt.Println(n)
}
