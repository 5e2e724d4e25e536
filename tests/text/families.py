"""Chat templates in the manner of the well-known families, in our own words, each with what its family makes use of."""

from __future__ import annotations

CHATML_TOOLS = """
{%- set system = messages[0].content if messages[0].role == 'system' else 'You are helpful.' %}
{{- '<|im_start|>system\\n' + system }}
{%- if tools %}
    {{- '\\n\\nFunctions, one a line:\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}{{ tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools>' }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- for message in (messages[1:] if messages[0].role == 'system' else messages) %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function if call.function else call %}
            {{- '\\n<tool_call>\\n{"name": "' ~ call.name ~ '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""

THINKING = """
{%- set ns = namespace(searching=true, last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = messages | length - 1 - loop.index0 %}
    {%- if ns.searching and message.role == 'user' and not (message.content.startswith('<tool_response>')
            and message.content.endswith('</tool_response>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'assistant' %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or reasoning) %}
            {%- set content = '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content %}
        {%- endif %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

HEADERS_WITH_IPYTHON = """
{{- bos_token }}
{%- if custom_tools is defined %}{% set tools = custom_tools %}{% endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{% set date_string = strftime_now('%d %b %Y') %}
    {%- else %}{% set date_string = '1 Jan 2024' %}{% endif %}
{%- endif %}
{%- macro turn(role, text) %}<|start_header_id|>{{ role }}<|end_header_id|>\n\n{{ text | trim }}<|eot_id|>{% endmacro %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{%- set environment = 'Environment: ipython\\n' if tools is not none else '' %}
{{- turn('system', environment ~ 'Today: ' ~ date_string ~ '\\n\\n' ~ system) }}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception('Only one call at a time') }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '<|python_tag|>' + call.name + '.call(' }}
        {%- for name, value in call.arguments | items %}
            {{- name + '="' + value | string + '"' }}
            {%- if not loop.last %}{{ ', ' }}{% endif %}
        {%- endfor %}
        {{- ')<|eom_id|>' }}
    {%- elif message.role in ('tool', 'ipython') %}
        {%- set result = message.content | tojson if message.content is mapping or (message.content is iterable
                and message.content is not string) else message.content %}
        {{- turn('ipython', result) }}
    {%- else %}
        {{- turn(message.role, message.content) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}
"""

INST_ALTERNATION = """
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set turns = loop_messages | selectattr('role', 'in', ['user', 'assistant']) | list %}
{%- for message in turns %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('After the optional system message, user and assistant must alternate') }}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message['role'] == 'user' %}
        {%- if tools is not none and (message == turns[-1]) %}
            {{- '[AVAILABLE_TOOLS] [' }}
            {%- for tool in tools %}
                {{- '{' }}
                {%- for key, value in tool.function.items() if key != 'return' %}
                    {{- '"' + key + '": ' + (value | tojson) }}{{ ', ' if not loop.last }}
                {%- endfor %}
                {{- '}' }}{{ ', ' if not loop.last else ']' }}
            {%- endfor %}
            {{- '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- '[INST] ' + system_message + '\\n\\n' + message['content'] + '[/INST]' }}
        {%- else %}
            {{- '[INST] ' + message['content'] + '[/INST]' }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {%- for call in message.tool_calls %}
            {%- if not call.id is defined or call.id | length != 9 %}
                {{- raise_exception('Call ids have nine characters') }}
            {%- endif %}
            {%- set out = call.function | tojson %}
            {{- '[TOOL_CALLS] [' + out[:-1] + ', "id": "' + call.id + '"}]' + eos_token }}
        {%- endfor %}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] | trim + eos_token }}
    {%- elif message['role'] == 'tool' %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string + '}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception('Role ' ~ message.role ~ ' is not known') }}
    {%- endif %}
{%- endfor %}
"""

TURNS_OF_TWO = """
{{- bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Turns must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] if item['type'] == 'text' -%}
            {{ item['text'] | trim }}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Content must be text") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\n' }}
{%- endif -%}
"""

REASONING_CUT_OFF = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    "{% set ns = namespace(system='', in_tools=false) %}"
    "{%- for message in messages %}{%- if message['role'] == 'system' %}"
    "{% set ns.system = message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system}}"
    "{%- for message in messages %}"
    "{%- if message['role'] == 'user' %}{%- set ns.in_tools = false -%}{{'<|User|>' + message['content']}}{%- endif %}"
    "{%- if message['role'] == 'assistant' and 'tool_calls' in message %}"
    "{%- for tool in message['tool_calls'] -%}"
    "{%- if loop.first %}{{'<|Assistant|><|calls|>'}}{%- endif %}"
    "{{tool['function']['name'] + '\\n```json\\n' + tool['function']['arguments'] + '\\n```'}}{%- endfor %}"
    "{{'<|calls_end|>'}}{%- elif message['role'] == 'assistant' %}"
    "{% set content = message['content'] %}"
    "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{'<|Assistant|>' + content + eos_token}}{%- endif %}"
    "{%- if message['role'] == 'tool' %}"
    "{%- if not ns.in_tools %}{{'<|outputs|>'}}{%- set ns.in_tools = true %}{%- endif %}"
    "{{'<|out|>' + message['content']}}{%- endif %}{%- endfor -%}"
    "{% if ns.in_tools %}{{'<|outputs_end|>'}}{% endif %}"
    "{% if add_generation_prompt and not ns.in_tools %}{{'<|Assistant|><think>\\n'}}{% endif %}"
)

ONE_LINE_ROLES = (
    "{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}"
    "{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}"
    "{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}"
    "{% generation %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endgeneration %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)

DOCUMENTS = """
{%- macro json_type(spec) -%}
    {%- if spec.type == 'string' -%}str
    {%- elif spec.type == 'array' -%}List[{{ json_type(spec['items']) }}]
    {%- elif spec.type == 'object' and spec.properties is mapping -%}
        Dict[{% for key in spec.properties.keys() %}{{ key }}{{ ', ' if not loop.last }}{% endfor %}]
    {%- elif spec.type is sequence and spec.type is not string -%}Union[{{ spec.type | join(', ') }}]
    {%- else -%}{{ {'integer': 'int', 'number': 'float', 'boolean': 'bool'}.get(spec.type, 'Any') }}
    {%- endif -%}
{%- endmacro -%}
{{ bos_token }}<|SYSTEM|>
{%- for tool in tools or [] %}
def {{ tool.function.name }}(
    {%- for name, spec in tool.function.parameters.properties | dictsort %}
        {{- name }}: {{ json_type(spec) }}{{ '' if name in tool.function.parameters.required else ' = None' }}
        {{- ', ' if not loop.last }}
    {%- endfor %})
    {{- ': # ' ~ tool.function.description | upper }}
{%- endfor %}
{%- if documents %}
<results>
{%- for document in documents %}
Document: {{ loop.index0 }}
{%- for key, value in document.items() if key is ne('id') %}
{{ key | title }}: {{ value | replace('\\n', ' ') | truncate(12, true, '..') }}
{%- endfor %}
{%- endfor %}
</results>
{%- endif %}
{%- for message in messages if message.role is in ['user', 'assistant'] %}
    {%- if message.skip is defined and message.skip %}{% continue %}{% endif %}
    {%- if loop.index > 20 %}{% break %}{% endif %}
<|{{ 'USER' if message.role == 'user' else 'BOT' }}|>{{ message.content }}
{%- endfor %}
{%- if add_generation_prompt %}<|BOT|>{% endif %}
"""

PRETTY_JSON = """
{%- set tool_names = (tools or []) | map(attribute='function') | map(attribute='name') | list %}
{%- if tools %}
{{- 'Tools: ' ~ tool_names | join(', ') ~ '\\n' }}
{{- tools | tojson(indent=2) }}
{{ (tools[0].function.parameters.required | first).capitalize() }}
{%- endif %}
{%- for message in messages %}
{%- set text = message.get('content', '') or '' %}
{{ loop.index }}/{{ loop.length }} {{ message.role.upper() }}: {{ text.strip().replace('\\n', ' | ') }}
{%- if message.tool_calls %}
{%- for name, value in message.tool_calls[0].function.arguments.items() %}
- {{ '%s=%s' % (name, value | tojson) }}
{%- endfor %}
{%- endif %}
{%- endfor %}
{%- set last = messages | last %}
{%- if add_generation_prompt and last.role != 'assistant' %}{{ '\\nASSISTANT:' }}{% endif %}
"""

EFFORT = """
{%- set effort = reasoning_effort | default('medium', true) %}
{%- if effort not in ['low', 'medium', 'high'] %}{{ raise_exception('reasoning_effort is ' ~ effort) }}{% endif %}
{%- macro wrap() %}{{ caller('effort ' ~ effort) }}{% endmacro %}
{%- call(text) wrap() %}{{ '[' ~ text ~ ']' }}{% endcall %}
{%- for message in messages %}
    {%- filter upper %}{{ message.role }}{% endfilter %}
    {%- set shown %}: {{ message.content | default('', true) | trim }}{% endset %}
    {{- shown }}
    {%- if message.thinking is defined and loop.last %} ({{ message.thinking | length }} thoughts){% endif %}
    {{- '\\n' }}
{%- endfor %}
"""
